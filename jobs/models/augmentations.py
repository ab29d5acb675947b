"""Data jobs: new samples made from a shard's samples, in batches."""

from __future__ import annotations

from django.db import models

from jobs.models.base import StatefulModel
from jobs.models.datasets import Shard, ShardRevision
from jobs.models.decisions import Decision
from jobs.models.jobs import Job


class Augmentation(StatefulModel):
    """One data job. `mode` replace drops the parent revision's samples, extend keeps them."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="augmentations")
    shard = models.ForeignKey(Shard, models.CASCADE, related_name="augmentations")
    decision = models.ForeignKey(Decision, models.SET_NULL, null=True, related_name="augmentations")
    method = models.CharField(max_length=32)
    mode = models.CharField(max_length=8, default="extend")
    params = models.JSONField(default=dict)
    seed = models.BigIntegerField(default=0)
    num_wanted = models.PositiveIntegerField()
    num_batches = models.PositiveIntegerField(default=0)
    num_made = models.PositiveIntegerField(default=0)
    num_rejected = models.PositiveIntegerField(default=0)
    priority = models.CharField(max_length=8, default="normal", help_text="high, normal, low")
    parent = models.ForeignKey(ShardRevision, models.SET_NULL, null=True, related_name="+")
    generator = models.CharField(max_length=300, blank=True)
    directive = models.ForeignKey("jobs.Directive", models.SET_NULL, null=True, related_name="+")
    ended_at = models.DateTimeField(null=True)
    error = models.TextField(blank=True)

    class Meta:
        ordering = ["-id"]


class AugmentationBatch(models.Model):
    """A slice of an augmentation that one actor call makes. The result is stored with the row, so a retry is harmless."""

    augmentation = models.ForeignKey(Augmentation, models.CASCADE, related_name="batches")
    number = models.PositiveIntegerField()
    status = models.CharField(max_length=8, default="pending", help_text="pending, claimed, done, failed")
    claim = models.CharField(max_length=64, blank=True)
    lease_until = models.DateTimeField(null=True)
    num_tries = models.PositiveIntegerField(default=0)
    samples = models.JSONField(default=list)
    rejected = models.JSONField(default=dict, help_text="Reason of the gate -> count")
    error = models.TextField(blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["augmentation", "number"], name="batch_number_once")]
        indexes = [models.Index(fields=["status", "lease_until"])]
        ordering = ["augmentation_id", "number"]
