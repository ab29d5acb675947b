"""The form that edits a decision's arguments, built from what may be chosen."""

from __future__ import annotations

import json
import math
from typing import Any

from django import forms

from jobs.models import Decision
from jobs.selectors.decisions import args_in_force
from webapp.pages.forms.base import PageForm


class EditForm(PageForm):
    """One field for each argument that `decision.allowed` opens; its range is its hint and its check."""

    def __init__(self, decision: Decision, *args: Any, **kwargs: Any) -> None:
        kwargs["prefix"] = "edit"
        super().__init__(*args, **kwargs)
        self.in_force = args_in_force(decision=decision)
        for name, allowed in decision.allowed.items():
            self.fields[name] = argument_field(name, allowed, decision.args.get(name), self.in_force.get(name))

    def edited(self) -> dict[str, Any]:
        """Only what differs from the arguments in force."""
        return {name: value for name, value in self.cleaned_data.items() if value != self.in_force.get(name)}


def argument_field(name: str, allowed: Any, proposed: Any, value: Any) -> forms.Field:
    """A choice for a list, a number for a range; it begins with the `value` in force."""
    label = name.replace("_", " ").capitalize()
    if isinstance(allowed, list):
        choices = [(str(a), str(a)) for a in allowed]
        hint = f"proposed: {proposed}"
        by_text = {str(a): a for a in allowed}
        return forms.TypedChoiceField(
            choices=choices, coerce=by_text.get, initial=str(value), label=label, help_text=hint
        )
    low, high = allowed.get("min", -math.inf), allowed.get("max", math.inf)
    known = isinstance(proposed, int | float)
    hint = f"{low:,g} to {high:,g}; proposed: {proposed:,g}" if known else f"{low:,g} to {high:,g}"
    kind = forms.IntegerField if allowed.get("integer") else forms.FloatField
    return kind(label=label, min_value=low, max_value=high, initial=value, help_text=hint)


def args_shown(text: str) -> dict[str, Any] | None:
    """The arguments that a form was shown with, from its hidden field; None without, and what nobody holds if they are broken."""
    if not text:
        return None
    try:
        shown = json.loads(text)
    except ValueError:
        return {"": text}
    return shown if isinstance(shown, dict) else {"": text}


class RejectForm(PageForm):
    """A no needs a reason."""

    reason = forms.CharField(
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="The rule and your colleagues learn from it",
    )
