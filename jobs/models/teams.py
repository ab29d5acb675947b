"""Teams, members with roles, and tokens for programs."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from jobs.models.base import PublicModel

ROLES = ("viewer", "operator", "approver", "admin")  # each may do all that the ones before it may
SCOPES = ("ingest", "read", "operate", "approve", "admin")


class Team(PublicModel):
    """Everything belongs to one team and is seen through `jobs/access.py` only."""

    name = models.CharField(max_length=80)
    slug = models.SlugField(max_length=80, unique=True)
    time_zone = models.CharField(max_length=64, default="UTC", help_text="IANA name; shown times use it")
    last_decision_number = models.PositiveIntegerField(default=0)
    two_person = models.BooleanField(default=False, help_text="Costly decisions need two approvers")
    two_person_from_usd = models.DecimalField(
        max_digits=12, decimal_places=2, default=0, help_text="What costs at least this is costly; 0: everything"
    )
    max_gpus = models.PositiveIntegerField(
        null=True, blank=True, help_text="GPUs that the jobs of the team may hold together; none: no limit"
    )
    budget_usd = models.DecimalField(
        max_digits=12,
        decimal_places=2,
        null=True,
        blank=True,
        help_text="What the machines of the team may cost in a calendar month of its clock; none: no limit",
    )
    budget_warned_for = models.CharField(
        max_length=40, blank=True, help_text="Month and budget of the last warning, as 2026-11 of 500.00"
    )
    forbid_own_approval = models.BooleanField(default=False, help_text="Nobody approves what they asked for")

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Member(PublicModel):
    """One person's role in one team."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="members")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=[(role, role) for role in ROLES], default="viewer")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "user"], name="member_once_per_team")]
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.user} ({self.role})"


class ApiToken(PublicModel):
    """A hashed token. Either a person's or service's (scopes), or the ingest token of one attempt."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="tokens")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, null=True, related_name="api_tokens")
    attempt = models.ForeignKey("jobs.Attempt", models.CASCADE, null=True, related_name="tokens")
    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=16, help_text="First characters, shown in lists")
    digest = models.CharField(max_length=64, unique=True, help_text="SHA-256 of the token, hexadecimal")
    scopes = models.JSONField(default=list)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"
