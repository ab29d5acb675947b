"""Snapshots and weight exports, as records; the bytes lie where the trainer wrote them."""

from __future__ import annotations

from django.db import models

from jobs.models.base import StatefulModel
from jobs.models.jobs import Attempt, Job


class Snapshot(StatefulModel):
    """A gradient snapshot (`kind` gradient) or an export of the weights for other programs (`kind` weights)."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="snapshots")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="snapshots")
    name = models.CharField(max_length=120, help_text="The trainer's name for it, unique in the attempt")
    kind = models.CharField(max_length=16, default="gradient")
    step = models.PositiveIntegerField()
    micro_step = models.PositiveIntegerField(default=0)
    world_size = models.PositiveIntegerField(default=1)
    uri = models.CharField(max_length=500)
    num_bytes = models.BigIntegerField(default=0)
    digest = models.CharField(max_length=80, blank=True)
    loaded_digest = models.CharField(
        max_length=80, blank=True, help_text="As loaded by the attempt that resumed from it"
    )
    detail = models.TextField(blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "name"], name="snapshot_name_once")]
        indexes = [models.Index(fields=["job", "kind", "-step"])]
        ordering = ["job_id", "-step", "-id"]
