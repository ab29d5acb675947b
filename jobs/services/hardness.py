"""Hardness of a job's shards: updated by the evaluation tick, kept with its history."""

from __future__ import annotations

import datetime as dt

import numpy as np
from django.db import connection, transaction
from django.db.models import Exists, OuterRef

from jobs.models import HardnessRecord, Job, JobShard
from jobs.planes import compress
from jobs.scheduler.hardness import hardness_scores
from jobs.scheduler.situation import Situation

MOVED = 0.01  # a smaller change is neither stored nor shown
KEEP = dt.timedelta(days=30)  # after the end of the job; the newest record stays as long as the job


def hardness_record(*, job: Job, situation: Situation, now: dt.datetime) -> int:
    """Update `JobShard.hardness_score` from what the rules see, and keep the scores with their step. Returns how many moved."""
    rows = (
        JobShard.objects.filter(job=job)
        .order_by("index")
        .values_list("pk", "index", "hardness_score", "shard__hardness_score")
    )
    found = list(rows)[: len(situation.shards)]
    if not found:
        return 0
    before, prior = (np.array([row[place] for row in found], dtype=float) for place in (2, 3))
    after = hardness_scores(situation, prior, before)
    moved = np.flatnonzero(np.abs(after - before) >= MOVED)
    if not len(moved):
        return 0
    scores = np.zeros(found[-1][1] + 1, dtype="<f4")
    for place, row in enumerate(found):
        scores[row[1]] = after[place]
    with transaction.atomic():
        _update([(round(float(after[place]), 4), found[place][0]) for place in moved])
        HardnessRecord.objects.update_or_create(
            job=job,
            step=situation.step,
            defaults={"at": now, "num": len(scores), "payload": compress(scores.tobytes())},
        )
    return len(moved)


def hardness_prune(*, now: dt.datetime) -> int:
    """Forget all but the newest record of jobs that ended more than `KEEP` ago; returns how many."""
    newer = HardnessRecord.objects.filter(job=OuterRef("job"), step__gt=OuterRef("step"))
    return HardnessRecord.objects.filter(Exists(newer), job__ended_at__lt=now - KEEP).delete()[0]


def _update(changes: list[tuple[float, int]]) -> None:
    """One statement repeated: ten thousand rows in the ORM's form would be a statement of a megabyte."""
    with connection.cursor() as cursor:
        cursor.executemany(f"UPDATE {JobShard._meta.db_table} SET hardness_score = %s WHERE id = %s", changes)
