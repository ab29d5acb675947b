"""The form of a notification target."""

from __future__ import annotations

from typing import Any

from django import forms

from webapp.pages.forms.base import PageForm

GROUPS = {
    "decision.proposed": "A decision waits for an answer",
    "decision.*": "Everything about decisions",
    "job.*": "Jobs: submitted, running, ended, deadline passed",
    "attempt.*": "Attempts: started, lost, not finite",
    "snapshot.*": "Snapshots: saved, refused, proved",
    "*": "Everything",
}


class TargetForm(PageForm):
    """A webhook, or an address for apprise."""

    name = forms.CharField(max_length=80, help_text="As on-call or ml-ops channel")
    form = forms.ChoiceField(
        label="Kind", choices=[("webhook", "Webhook (signed JSON)"), ("apprise", "E-mail, Slack and others (apprise)")]
    )
    address = forms.CharField(
        max_length=1000, help_text="https://… for a webhook; mailto://, slack://, … for apprise. It is shown this once."
    )
    kinds = forms.MultipleChoiceField(
        label="Tell of",
        choices=list(GROUPS.items()),
        widget=forms.CheckboxSelectMultiple,
        initial=["decision.proposed"],
    )

    def values(self) -> dict[str, Any]:
        return dict(self.cleaned_data)
