"""Runs that report no loss by shard: the loss of the whole run is a shard of its own, `all`, in a dataset of the team's.

So that a script with nothing but a callback, or with none at all, has its row in the heatmap, its series and its report. The
dataset "Whole runs" holds that one shard and no samples; no job can be submitted on it.
"""

from __future__ import annotations

import datetime as dt
import hashlib

from django.db import transaction
from django.db.models import Max

from jobs.models import Dataset, Job, JobShard, Shard, ShardRevision
from jobs.services.shards import data_dir

WHOLE_RUN = "all"
DATASET = "Whole runs"
_EMPTY = "whole-runs.jsonl"


@transaction.atomic
def whole_run_attach(*, job: Job, now: dt.datetime) -> None:
    """Give the job the shard `all`, unless it has one of that name. Harmless to repeat."""
    Job.objects.select_for_update().only("pk").get(pk=job.pk)
    if job.job_shards.filter(shard__key=WHOLE_RUN).exists():
        return
    revision = _revision(job, now)
    last = job.job_shards.aggregate(m=Max("index"))["m"]
    JobShard.objects.create(
        job=job, shard=revision.shard, revision=revision, index=0 if last is None else last + 1, weight=0.0, pinned=True
    )


def _revision(job: Job, now: dt.datetime) -> ShardRevision:
    dataset, _ = Dataset.objects.get_or_create(
        team=job.team,
        name=DATASET,
        defaults={
            "description": "Loss of runs that report no shards: one shard stands for all that they train on. It holds no samples.",
            "created_at": now,
        },
    )
    shard, _ = Shard.objects.get_or_create(
        dataset=dataset, key=WHOLE_RUN, defaults={"category": "whole run", "weight": 0.0, "created_at": now}
    )
    path = data_dir() / _EMPTY
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    revision, _ = ShardRevision.objects.get_or_create(
        shard=shard,
        number=1,
        defaults={
            "path": _EMPTY, "sha256": hashlib.sha256(b"").hexdigest(), "num_samples": 0, "num_bytes": 0, "created_at": now,
        },
    )  # fmt: skip
    return revision
