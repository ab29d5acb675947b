"""The form of a rule: how much may happen without a person, and within which limits."""

from __future__ import annotations

from typing import Any

from django import forms

from jobs.models import AUTONOMY, ROLES, Rule
from jobs.services.rules import LIMITS
from webapp.pages.forms.base import PageForm

ANSWERERS = ROLES[ROLES.index("approver") :]  # nobody below answers, whatever a rule says
MEANING = {
    "off": "off: nothing is proposed",
    "suggest": "suggest: shown, nobody is asked",
    "ask": "ask: waits for a person",
    "ask_default": "ask, then silence counts",
    "auto_within_limits": "auto within limits, else ask",
    "auto": "auto: done at once",
}
SILENCE = [("reject", "no"), ("approve", "yes"), ("escalate", "others are told")]
LABELS = {
    "max_usd": ("At most, USD each", "a decision that costs more is asked"),
    "max_usd_per_hour": ("USD an hour", "of the machines that are bought"),
    "max_usd_per_job": ("USD for one job", "approved by this rule, ever"),
    "max_extra_usd": ("USD dearer than planned", "against the job's first plan"),
    "max_usd_per_day": ("USD a day", "counted from midnight UTC"),
    "max_samples_per_day": ("Samples a day", "augmented samples"),
    "max_per_hour": ("Decisions an hour", ""),
    "min_confidence": ("Least confidence", "0 to 1"),
}


class RuleForm(PageForm):
    """Autonomy, limits, what silence means, and who may answer."""

    domain_names = {"limits": "max_usd"}

    autonomy = forms.ChoiceField(choices=[(a, MEANING[a]) for a in AUTONOMY])
    max_usd = forms.FloatField(required=False, min_value=0)
    max_usd_per_hour = forms.FloatField(required=False, min_value=0)
    max_usd_per_job = forms.FloatField(required=False, min_value=0)
    max_extra_usd = forms.FloatField(required=False, min_value=0)
    max_usd_per_day = forms.FloatField(required=False, min_value=0)
    max_samples_per_day = forms.IntegerField(required=False, min_value=0)
    max_per_hour = forms.IntegerField(required=False, min_value=0)
    min_confidence = forms.FloatField(required=False, min_value=0, max_value=1)
    default_answer = forms.ChoiceField(
        choices=[("reject", "no"), ("approve", "yes"), ("escalate", "others are told")], label="Silence means"
    )
    default_after_min = forms.IntegerField(label="After, minutes", min_value=1, max_value=43_200)
    min_role = forms.ChoiceField(choices=[(r, r) for r in ANSWERERS], label="Who may answer", help_text="and above")

    def __init__(self, *args: Any, rule: Rule, **kwargs: Any) -> None:
        initial = {
            "autonomy": rule.autonomy,
            "default_answer": rule.default_answer or "reject",
            "default_after_min": max(1, rule.default_after_s // 60),
            "min_role": rule.min_role if rule.min_role in ANSWERERS else ANSWERERS[0],
            **rule.limits,
        }
        kwargs["initial"] = initial
        super().__init__(*args, **kwargs)
        for name, (label, hint) in LABELS.items():
            self.fields[name].label, self.fields[name].help_text = label, hint

    def arguments(self) -> dict[str, Any]:
        """For `rule_set`; an empty limit is no limit."""
        data = self.cleaned_data
        return {
            "autonomy": data["autonomy"],
            "limits": {name: data[name] for name in LIMITS if data.get(name) is not None},
            "default_answer": data["default_answer"],
            "default_after_s": data["default_after_min"] * 60,
            "min_role": data["min_role"],
        }
