"""How hard the shards of a job were found to be, over its steps."""

from __future__ import annotations

from django.db import models

from jobs.models.jobs import Job


class HardnessRecord(models.Model):
    """Scores of all shards of a job from `step` on; written when one of them has moved."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="hardness_records", db_index=False)
    step = models.PositiveIntegerField(help_text="Optimizer steps done when it was measured")
    at = models.DateTimeField()
    num = models.PositiveIntegerField(help_text="Length of the array in the payload")
    payload = models.BinaryField(help_text="zstd of little-endian float32 by JobShard.index")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "step"], name="hardness_once_per_step")]
        ordering = ["job_id", "step"]
