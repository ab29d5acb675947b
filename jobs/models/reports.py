"""Telemetry: reports as they came, and rollups for reading.

A rollup row holds one (attempt, level, bin): arrays over shards (by `JobShard.index`) or over worker ranks, packed as
`jobs/planes.py` says. A row per cell would need a million upserts a second where this needs a few hundred.
"""

from __future__ import annotations

from django.db import models

from jobs.models.jobs import Attempt, Job


class Report(models.Model):
    """One request of one worker: a compressed columnar batch. (attempt, worker, seq) makes a retry harmless."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="reports", db_index=False)
    worker = models.PositiveIntegerField()
    seq = models.PositiveIntegerField()
    received_at = models.DateTimeField()
    step_min = models.IntegerField(null=True)
    step_max = models.IntegerField(null=True)
    num_points = models.PositiveIntegerField(default=0, help_text="Shard points in the batch")
    payload = models.BinaryField(help_text="zstd of msgpack with little-endian columns: jobs/services/report_store.py")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "worker", "seq"], name="report_once")]
        indexes = [models.Index(fields=["attempt", "id"])]


class RollupBin(models.Model):
    """Abstract. One bin of 4**level optimizer steps of one attempt; `bin` is step // 4**level."""

    level = models.PositiveSmallIntegerField(help_text="Bin width is 4**level steps")
    bin = models.IntegerField(help_text="step // 4**level")
    num = models.PositiveIntegerField(help_text="Length of each array in the payload")
    payload = models.BinaryField(help_text="zstd of the planes, one after the other")

    class Meta:
        abstract = True


class ShardBin(RollupBin):
    """Loss of every shard in one bin, summed over ranks: planes `jobs.planes.SHARD` by `JobShard.index`."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="shard_bins", db_index=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "level", "bin"], name="shard_bin_once")]


class WorkerBin(RollupBin):
    """Step time of every worker in one bin: planes `jobs.planes.WORKER` by rank."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="worker_bins", db_index=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "level", "bin"], name="worker_bin_once")]


class SignalState(models.Model):
    """How far the rules have read a job, so that a tick looks only at what is new."""

    job = models.OneToOneField(Job, models.CASCADE, related_name="signal_state")
    evaluated_step = models.IntegerField(default=-1)
    evaluated_at = models.DateTimeField(null=True)
    completion = models.JSONField(default=dict, help_text="jobs.scheduler.completion.Completion, as last fitted")
