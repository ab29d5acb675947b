"""Where a team wants to be told of events, and each event that was or is to be told there."""

from __future__ import annotations

from urllib.parse import urlsplit

from django.conf import settings
from django.db import models

from jobs.models.base import PublicModel
from jobs.models.events import Event
from jobs.models.teams import Team

FORMS = ("webhook", "apprise")


class NotificationTarget(PublicModel):
    """A webhook of the team's, or an address that apprise knows (e-mail, Slack, …)."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="notification_targets")
    name = models.CharField(max_length=80)
    form = models.CharField(max_length=16, choices=[(f, f) for f in FORMS], default="webhook")
    address = models.CharField(max_length=1000, help_text="URL; may hold a password, so it is never shown whole")
    secret = models.CharField(max_length=80, blank=True, help_text="Key of the signature; readable, since it signs")
    kinds = models.JSONField(default=list, help_text="Patterns of event kinds: decision.proposed, job.*")
    enabled = models.BooleanField(default=True)
    told_up_to = models.BigIntegerField(default=0, help_text="Every event up to this id has been looked at")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    last_sent_at = models.DateTimeField(null=True)
    num_failures = models.PositiveIntegerField(default=0, help_text="Failed tries since the last that arrived")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="notification_target_name_once")]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def address_shown(self) -> str:
        """The address without what may be secret in it: user, password, path and query; for apprise, where many a service takes
        its key in the host's place (`pbul://KEY`, `slack://A/B/C`), the service only."""
        if self.form == "apprise":
            return f"{self.address.partition(':')[0]}://…"
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.hostname or ''}/…"


class Notification(PublicModel):
    """One event for one target. It waits while `due_at` is set; a try moves `due_at` ahead, which is its lease."""

    target = models.ForeignKey(NotificationTarget, models.CASCADE, related_name="notifications")
    event = models.ForeignKey(Event, models.CASCADE, related_name="+")
    due_at = models.DateTimeField(null=True)
    num_tries = models.PositiveIntegerField(default=0)
    sent_at = models.DateTimeField(null=True)
    status_code = models.PositiveIntegerField(null=True, help_text="Of the last answer, for a webhook")
    took_s = models.FloatField(null=True)
    error = models.CharField(max_length=500, blank=True, help_text="Why the last try failed")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["target", "event"], name="notification_once")]
        indexes = [models.Index(fields=["due_at"], name="notification_due", condition=models.Q(due_at__isnull=False))]
        ordering = ["-id"]

    @property
    def state(self) -> str:
        """sent, waiting, or given up."""
        return "sent" if self.sent_at else "waiting" if self.due_at else "given up"
