"""Datasets, their shards, and what a shard held at each time."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from jobs.models.base import PublicModel
from jobs.models.teams import Team


class Dataset(PublicModel):
    """A named set of shards."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="datasets")
    name = models.CharField(max_length=120)
    description = models.TextField(blank=True)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["team", "name"], name="dataset_name_once_per_team")]
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Shard(PublicModel):
    """A part of a dataset with one origin, whose loss is followed by itself.

    `key` is the id that trainers and files use (`neuro_002`). `category` groups shards that ought to behave alike.
    """

    dataset = models.ForeignKey(Dataset, models.CASCADE, related_name="shards")
    key = models.CharField(max_length=120)
    category = models.CharField(max_length=80, blank=True)
    source = models.CharField(max_length=200, blank=True)
    provenance = models.JSONField(default=dict)
    hardness_score = models.FloatField(default=0.5, help_text="0 easy to 1 hard")
    weight = models.FloatField(default=1.0, help_text="Sampling weight at the start of a job")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["dataset", "key"], name="shard_key_once_per_dataset")]
        ordering = ["category", "key"]

    def __str__(self) -> str:
        return self.key


class ShardRevision(PublicModel):
    """What a shard holds from one moment on: one JSONL file, never changed afterwards."""

    shard = models.ForeignKey(Shard, models.CASCADE, related_name="revisions")
    number = models.PositiveIntegerField()
    path = models.CharField(max_length=500, help_text="Below the data directory of the server")
    sha256 = models.CharField(max_length=64)
    num_samples = models.PositiveIntegerField()
    num_bytes = models.BigIntegerField()
    origin = models.CharField(max_length=24, default="upload", help_text="upload, config, rest, augmentation")
    augmentation = models.ForeignKey("jobs.Augmentation", models.SET_NULL, null=True, related_name="revisions")
    parent = models.ForeignKey("self", models.SET_NULL, null=True, related_name="children")
    provenance = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["shard", "number"], name="revision_number_once")]
        ordering = ["shard_id", "number"]

    def __str__(self) -> str:
        return f"{self.shard.key} r{self.number}"
