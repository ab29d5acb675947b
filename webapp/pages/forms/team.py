"""Forms of the team page: members and tokens."""

from __future__ import annotations

import zoneinfo

from django import forms

from jobs.models import ROLES, SCOPES
from webapp.pages.forms.base import PageForm

ROLE_MEANING = {
    "viewer": "viewer: sees everything",
    "operator": "operator: also datasets and jobs",
    "approver": "approver: also decisions and rules",
    "admin": "admin: also people and tokens",
}
SCOPE_MEANING = {
    "ingest": "ingest: send telemetry",
    "read": "read",
    "operate": "operate: datasets and jobs",
    "approve": "approve: decisions",
    "admin": "admin",
}
LIVES = [("30", "30 days"), ("90", "90 days"), ("365", "a year"), ("never", "without end")]


class MemberForm(PageForm):
    """Somebody to add. An address that has no account yet gets one."""

    email = forms.EmailField(label="E-mail")
    role = forms.ChoiceField(choices=[(r, ROLE_MEANING[r]) for r in ROLES])


class TokenForm(PageForm):
    """A token for a program."""

    name = forms.CharField(max_length=80, help_text="What will use it, as slurm-garching")
    scopes = forms.MultipleChoiceField(
        choices=[(s, SCOPE_MEANING[s]) for s in SCOPES], widget=forms.CheckboxSelectMultiple, initial=["read"]
    )
    days = forms.ChoiceField(label="Ends after", choices=LIVES, initial="90")


class TeamForm(PageForm):
    """Name and clock."""

    name = forms.CharField(max_length=80)
    time_zone = forms.ChoiceField(
        choices=[(z, z) for z in sorted(zoneinfo.available_timezones())],
        label="Time zone",
        help_text="The clock that pages of this team show",
    )
    two_person = forms.BooleanField(label="Costly decisions need two approvers", required=False)
    two_person_from_usd = forms.DecimalField(
        label="Costly from, USD",
        min_value=0,
        max_digits=12,
        decimal_places=2,
        initial=0,
        help_text="0: every decision. A rule's yes, or silence that counts as one, is one of the two at most",
    )
    forbid_own_approval = forms.BooleanField(label="Nobody approves what they asked for", required=False)
    max_gpus = forms.IntegerField(
        label="GPUs at once",
        required=False,
        min_value=0,
        max_value=1_000_000,
        help_text="That the jobs of the team may hold together, in every backend; empty: no limit",
    )
    budget_usd = forms.DecimalField(
        label="Budget for a month, USD",
        required=False,
        min_value=0,
        max_digits=12,
        decimal_places=2,
        help_text="What machines may cost in a month of the clock above; before that jobs save and leave. Empty: no limit",
    )
