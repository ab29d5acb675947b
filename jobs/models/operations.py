"""Bookkeeping of the service itself: idempotency keys, periodic slots, heartbeats."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone

from jobs.models.base import PublicModel
from jobs.models.teams import Team


class IdempotencyKey(models.Model):
    """The first answer to a POST, given again to its repeats."""

    team = models.ForeignKey(Team, models.CASCADE, null=True, related_name="+")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    request_digest = models.CharField(max_length=64)
    status_code = models.PositiveIntegerField(null=True, help_text="Empty while the first request is at work")
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once_per_person")]


class PeriodicRun(models.Model):
    """One slot of one periodic task. The unique row makes two clocks harmless."""

    name = models.CharField(max_length=64)
    slot = models.BigIntegerField(help_text="unix time // period")
    at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["name", "slot"], name="periodic_run_once")]


class Heartbeat(models.Model):
    """Last sign of life of a part of the service, sent end to end through its queue."""

    name = models.CharField(max_length=64, unique=True)
    at = models.DateTimeField()
    data = models.JSONField(default=dict)


class Upload(PublicModel):
    """A file on its way into a shard, with the verdict on it."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="uploads")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    dataset = models.ForeignKey("jobs.Dataset", models.CASCADE, related_name="uploads")
    shard_key = models.CharField(max_length=120)
    file_name = models.CharField(max_length=255)
    num_bytes = models.BigIntegerField(default=0)
    num_samples = models.PositiveIntegerField(default=0)
    num_bad = models.PositiveIntegerField(default=0)
    bad_lines = models.JSONField(default=list, help_text="First bad lines: number and reason")
    accepted = models.BooleanField(default=False)

    class Meta:
        ordering = ["-id"]
