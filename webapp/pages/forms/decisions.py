"""The form that edits a decision's arguments, built from what may be chosen."""

from __future__ import annotations

import math
from typing import Any

from django import forms

from jobs.models import Decision
from webapp.pages.forms.base import PageForm


class EditForm(PageForm):
    """One field for each argument that `decision.allowed` opens; its range is its hint and its check."""

    def __init__(self, decision: Decision, *args: Any, **kwargs: Any) -> None:
        kwargs["prefix"] = "edit"
        super().__init__(*args, **kwargs)
        for name, allowed in decision.allowed.items():
            self.fields[name] = argument_field(name, allowed, decision.args.get(name))

    def edited(self, decision: Decision) -> dict[str, Any]:
        """Only what differs from the proposal."""
        return {name: value for name, value in self.cleaned_data.items() if value != decision.args.get(name)}


def argument_field(name: str, allowed: Any, value: Any) -> forms.Field:
    """A choice for a list, a number for a range."""
    label = name.replace("_", " ").capitalize()
    if isinstance(allowed, list):
        choices = [(str(a), str(a)) for a in allowed]
        hint = f"proposed: {value}"
        by_text = {str(a): a for a in allowed}
        return forms.TypedChoiceField(
            choices=choices, coerce=by_text.get, initial=str(value), label=label, help_text=hint
        )
    low, high = allowed.get("min", -math.inf), allowed.get("max", math.inf)
    hint = (
        f"{low:,g} to {high:,g}; proposed: {value:,g}" if isinstance(value, int | float) else f"{low:,g} to {high:,g}"
    )
    kind = forms.IntegerField if allowed.get("integer") else forms.FloatField
    return kind(label=label, min_value=low, max_value=high, initial=value, help_text=hint)


class RejectForm(PageForm):
    """A no needs a reason."""

    reason = forms.CharField(
        max_length=1000,
        widget=forms.Textarea(attrs={"rows": 3}),
        help_text="The rule and your colleagues learn from it",
    )
