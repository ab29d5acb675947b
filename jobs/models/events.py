"""The append-only history."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db import models
from django.utils import timezone

from jobs.models.jobs import Job
from jobs.models.teams import Team


class Event(models.Model):
    """What happened, to what, by whom. Written in the transaction of the change; never changed, never deleted."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="events")
    job = models.ForeignKey(Job, models.CASCADE, null=True, related_name="events")
    at = models.DateTimeField(default=timezone.now)
    kind = models.CharField(max_length=64, help_text="noun.verb or noun.state, as decision.approved")
    subject_type = models.CharField(max_length=32)
    subject_uuid = models.UUIDField(null=True)
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    actor = models.CharField(max_length=120, help_text="A person's address, rule:NAME, trainer, or system")
    text = models.TextField(blank=True, help_text="One sentence for a person")
    data = models.JSONField(default=dict)

    class Meta:
        indexes = [
            models.Index(fields=["team", "-id"]),
            models.Index(fields=["job", "-id"]),
            models.Index(fields=["subject_uuid", "-id"]),
        ]
        ordering = ["-id"]

    def save(self, *args: Any, **kwargs: Any) -> None:
        assert self._state.adding, "events are append-only"
        super().save(*args, **kwargs)

    def delete(self, *args: Any, **kwargs: Any) -> tuple[int, dict[str, int]]:
        raise AssertionError("events are append-only")
