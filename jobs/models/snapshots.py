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
    save_s = models.FloatField(null=True, help_text="Seconds from its beginning until it was read back")
    digest = models.CharField(max_length=80, blank=True)
    loaded_digest = models.CharField(
        max_length=80, blank=True, help_text="As loaded by the attempt that resumed from it"
    )
    parts = models.JSONField(default=dict, help_text="Part of the state (moments, gradients, …) -> its digest")
    loaded_parts = models.JSONField(default=dict)
    loaded_at = models.DateTimeField(null=True)
    detail = models.TextField(blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "name"], name="snapshot_name_once")]
        indexes = [models.Index(fields=["job", "kind", "-step"])]
        ordering = ["job_id", "-step", "-id"]

    @property
    def proof(self) -> str:
        """equal or different: what the newest attempt that resumed from it holds, against what was saved. Empty: not known."""
        if not self.digest or not self.loaded_digest:
            return ""
        return "equal" if self.digest == self.loaded_digest else "different"

    @property
    def place(self) -> str:
        """The step that it stands before, with the micro-batches of it that are done."""
        return f"step {self.step:,}" + (f", {self.micro_step} micro-steps in" if self.micro_step else "")
