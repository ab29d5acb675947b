"""Machines that cost money until their end is confirmed."""

from __future__ import annotations

from django.db import models

from jobs.models.base import StatefulModel
from jobs.models.jobs import Attempt, Job
from jobs.models.teams import Team


class Instance(StatefulModel):
    """A machine of a provider. Cost runs from `requested` until `terminated` is confirmed."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="instances")
    job = models.ForeignKey(Job, models.SET_NULL, null=True, related_name="instances")
    attempt = models.ForeignKey(Attempt, models.SET_NULL, null=True, related_name="instances")
    claim = models.CharField(max_length=64, unique=True, help_text="Idempotency token of the create call")
    backend = models.CharField(max_length=32)
    provider_id = models.CharField(max_length=200, blank=True)
    kind = models.CharField(max_length=16, default="on_demand", help_text="spot or on_demand")
    num_gpus = models.PositiveIntegerField(default=0)
    price_usd_per_hour = models.DecimalField(max_digits=12, decimal_places=6, default=0)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    detail = models.TextField(blank=True)

    class Meta:
        ordering = ["-id"]
