"""Telemetry: reports as they came, and rollups for reading.

Shapes: S shards (by `JobShard.index`), B step bins. A rollup row holds one (attempt, level, bin, shard) cell.
"""

from __future__ import annotations

from django.db import models

from jobs.models.jobs import Attempt, Job


class Report(models.Model):
    """One request of one worker: a compressed columnar batch. (attempt, worker, seq) makes a retry harmless."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="reports")
    worker = models.PositiveIntegerField()
    seq = models.PositiveIntegerField()
    received_at = models.DateTimeField()
    step_min = models.IntegerField(null=True)
    step_max = models.IntegerField(null=True)
    num_points = models.PositiveIntegerField(default=0, help_text="Shard points in the batch")
    payload = models.BinaryField(help_text="zstd of the canonical JSON of the request")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "worker", "seq"], name="report_once")]
        indexes = [models.Index(fields=["attempt", "step_max"])]


class ShardCell(models.Model):
    """Loss of one shard in one bin of steps of one attempt, summed over ranks."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="cells", db_index=False)
    level = models.PositiveSmallIntegerField(help_text="Bin width is 4**level steps")
    bin = models.IntegerField(help_text="step // 4**level")
    shard_index = models.PositiveIntegerField(help_text="JobShard.index")
    loss_sum = models.FloatField(default=0.0, help_text="Nats, finite points only")
    tokens = models.BigIntegerField(default=0, help_text="Supervised tokens of finite points")
    samples = models.BigIntegerField(default=0)
    num_points = models.PositiveIntegerField(default=0, help_text="Points with tokens, finite")
    num_nonfinite = models.PositiveIntegerField(default=0)
    loss_min = models.FloatField(null=True, help_text="Lowest loss per token of a point")
    loss_max = models.FloatField(null=True, help_text="Highest loss per token of a point")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["attempt", "level", "bin", "shard_index"], name="shard_cell_once")
        ]


class WorkerCell(models.Model):
    """Step time of one worker in one bin of steps of one attempt."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="worker_cells", db_index=False)
    level = models.PositiveSmallIntegerField()
    bin = models.IntegerField()
    worker = models.PositiveIntegerField()
    step_time_sum_s = models.FloatField(default=0.0)
    step_time_max_s = models.FloatField(default=0.0)
    tokens = models.BigIntegerField(default=0)
    num_steps = models.PositiveIntegerField(default=0)
    grad_norm_max = models.FloatField(null=True)
    num_nonfinite = models.PositiveIntegerField(default=0, help_text="Steps whose gradient norm or loss was not finite")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "level", "bin", "worker"], name="worker_cell_once")]


class SignalState(models.Model):
    """How far the rules have read a job, so that a tick looks only at what is new."""

    job = models.OneToOneField(Job, models.CASCADE, related_name="signal_state")
    evaluated_step = models.IntegerField(default=-1)
    evaluated_at = models.DateTimeField(null=True)
    data = models.JSONField(default=dict)
