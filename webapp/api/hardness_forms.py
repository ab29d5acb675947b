"""Hardness of shards as compact JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.errors import Invalid
from jobs.models import Job, JobShard
from jobs.selectors.hardness import hardness_history, in_bins
from jobs.selectors.heatmap import Heatmap
from webapp.api.heatmap_forms import rounded

DIGITS = 4
MOST_SHARDS = 500  # of one answer


def hardness_cells(heat: Heatmap) -> dict[str, Any]:
    """The score in force at the end of each cell of a heatmap, [row][bin]."""
    window = heat.window
    history = hardness_history(
        heat.job, indices=[row.index for row in heat.rows], since=window.start, until=window.stop + 1
    )
    cells = in_bins(history, start=window.start, width=window.width, num_bins=window.num_bins)
    return {"hardness": rounded(cells, DIGITS)}


def hardness_shards(job: Job, keys: Sequence[str]) -> list[JobShard]:
    """The job's shards in their order, or those of `keys`. Raises `Invalid` for unknown ones and for too many."""
    shards = JobShard.objects.filter(job=job).select_related("shard").order_by("index")
    if keys:
        shards = shards.filter(shard__key__in=keys[: MOST_SHARDS + 1])
    found = list(shards[: MOST_SHARDS + 1])
    if len(found) > MOST_SHARDS:
        raise Invalid(
            f"More than {MOST_SHARDS} shards.", fields={"shards": ["Name those you want, with commas between."]}
        )
    if unknown := sorted(set(keys) - {row.shard.key for row in found}):
        raise Invalid(f"Not a shard of this job: {', '.join(unknown[:5])}.", fields={"shards": ["Unknown shard."]})
    return found


def hardness_form(job: Job, shards: Sequence[JobShard], since: int, until: int | None) -> dict[str, Any]:
    """The answer of `hardness/`: `scores` of each shard follow `steps`."""
    history = hardness_history(job, indices=[row.index for row in shards], since=since, until=until)
    scores = rounded(history.scores, DIGITS)
    return {
        "steps": history.steps,
        "at": history.at,
        "shards": [
            {
                "key": row.shard.key,
                "index": row.index,
                "config": row.shard.hardness_score,
                "now": row.hardness_score,
                "scores": line,
            }
            for row, line in zip(shards, scores, strict=True)
        ],
    }
