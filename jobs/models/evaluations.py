"""Losses on samples that a job holds out."""

from __future__ import annotations

from django.db import models

from jobs.models.jobs import Attempt


class Evaluation(models.Model):
    """One look at the held-out samples, before optimizer step `step` of an attempt."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="evaluations", db_index=False)
    step = models.PositiveIntegerField(help_text="Optimizer steps done")
    at = models.DateTimeField()
    loss = models.FloatField(null=True, help_text="Nats per token over all of them; null: not finite")
    tokens = models.PositiveBigIntegerField()
    shards = models.JSONField(default=dict, help_text="Shard key -> nats per token")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "step"], name="evaluation_once")]
        ordering = ["attempt_id", "step"]
