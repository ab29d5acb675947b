"""Orders: commands for our workers, directives for trainers."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from jobs.models.base import StatefulModel
from jobs.models.decisions import Decision
from jobs.models.jobs import Attempt, Job


class Command(StatefulModel):
    """An order for workers. The broker carries its id only; the row is the truth.

    `key` makes issuing idempotent; `claim` and `lease_until` make execution single.
    """

    job = models.ForeignKey(Job, models.CASCADE, related_name="commands")
    decision = models.ForeignKey(Decision, models.CASCADE, null=True, related_name="commands")
    kind = models.CharField(max_length=32, help_text="launch, stop, augment_shard, pause_shard, …")
    key = models.CharField(max_length=120, unique=True)
    args = models.JSONField(default=dict)
    queue = models.CharField(max_length=16, default="control", help_text="control or urgent")
    due_at = models.DateTimeField(default=timezone.now)
    claim = models.CharField(max_length=64, blank=True)
    lease_until = models.DateTimeField(null=True)
    num_tries = models.PositiveIntegerField(default=0)
    result = models.JSONField(default=dict)
    error = models.TextField(blank=True)
    ended_at = models.DateTimeField(null=True)

    class Meta:
        indexes = [models.Index(fields=["status", "due_at"])]
        ordering = ["id"]


class Directive(StatefulModel):
    """An order for a running trainer, sent in the reply to its next report."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="directives")
    command = models.ForeignKey(Command, models.SET_NULL, null=True, related_name="directives")
    decision = models.ForeignKey(Decision, models.SET_NULL, null=True, related_name="directives")
    action = models.CharField(max_length=24)
    args = models.JSONField(default=dict)
    not_before_step = models.PositiveIntegerField(default=0)
    delivered_at = models.DateTimeField(null=True)
    applied_step = models.IntegerField(null=True)
    detail = models.TextField(blank=True)

    class Meta:
        indexes = [models.Index(fields=["attempt", "status"])]
        ordering = ["id"]
