"""How hard shards were, over steps. S shards, B bins, T records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jobs.models import HardnessRecord, Job, JobShard
from jobs.planes import decompress

MOST_RECORDS = 400  # of one answer; older ones in between are left out evenly


@dataclass(frozen=True)
class HardnessHistory:
    """`scores` [S, T] from each of `steps` [T] on, of the shards with these indices; NaN before a shard was part of the job."""

    steps: list[int]
    at: list[str]
    scores: NDArray


def hardness_history(job: Job, *, indices: list[int], since: int = 0, until: int | None = None) -> HardnessHistory:
    """Records of the steps [`since`, `until`), and the one in force at `since`."""
    records = HardnessRecord.objects.filter(job=job)
    first = records.filter(step__lte=since).order_by("-step").values_list("step", flat=True).first()
    records = records.filter(step__gte=since if first is None else first)
    if until is not None:
        records = records.filter(step__lt=max(until, since + 1))
    steps = list(records.order_by("step").values_list("step", flat=True))
    kept = (
        steps
        if len(steps) <= MOST_RECORDS
        else [steps[i] for i in np.linspace(0, len(steps) - 1, MOST_RECORDS, dtype=int)]
    )
    found = list(records.filter(step__in=kept).order_by("step").values_list("step", "at", "num", "payload"))
    scores = np.full((len(indices), len(found)), np.nan)
    wanted = np.array(indices, dtype=int)
    for column, (_, _, num, payload) in enumerate(found):
        values = np.frombuffer(decompress(payload), dtype="<f4", count=num)
        known = wanted < num
        scores[known, column] = values[wanted[known]]
    return HardnessHistory([row[0] for row in found], [row[1].isoformat() for row in found], scores)


def in_bins(history: HardnessHistory, *, start: int, width: int, num_bins: int) -> NDArray:
    """Score [S, B] in force at the last step of each bin; NaN before the first record."""
    last = start + width * (np.arange(num_bins) + 1)
    column = np.searchsorted(np.array(history.steps), last, side="right") - 1
    cells: NDArray = np.full((history.scores.shape[0], num_bins), np.nan)
    cells[:, column >= 0] = history.scores[:, column[column >= 0]]
    return cells


def hardness_line(row: JobShard, most: int = 120) -> list[float]:
    """The newest scores of one shard of a job, oldest first; one query."""
    records = HardnessRecord.objects.filter(job_id=row.job_id, num__gt=row.index).order_by("-step")
    found = records.values_list("num", "payload")[:most]
    return [float(np.frombuffer(decompress(payload), "<f4", num)[row.index]) for num, payload in reversed(found)]
