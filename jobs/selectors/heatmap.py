"""Loss per shard over steps as cells for a chart. S shards (rows), B bins (columns).

Binning keeps what a mean hides: the highest loss of a point, non-finite points, and cells that were seen without a token.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db.models import Q
from numpy.typing import NDArray

from jobs.errors import Invalid
from jobs.models import Attempt, Directive, Job, JobShard
from jobs.planes import Planes
from jobs.selectors.grids import grid_shards, mean_of
from jobs.selectors.windows import MAX_CELLS, Window, window_of

ORDERS = ("category", "worst", "hardness", "index")
MIN_BINS = 60  # rather fewer rows than fewer bins
MAX_ROWS = MAX_CELLS // MIN_BINS  # of one answer; more come in pages
LATEST_STEPS = 0.02  # the latest loss of a shard is its mean over this share of the steps shown, at least one bin


@dataclass(frozen=True, slots=True)
class ShardRow:
    """A shard of the job as a row. Plain values: a thousand model instances took half of the time of an answer."""

    index: int  # JobShard.index
    key: str
    uuid: uuid.UUID
    category: str
    weight: float
    paused: bool
    hardness_score: float


@dataclass(frozen=True)
class Heatmap:
    """What the chart draws. Arrays follow `rows`, the shards in the order asked for."""

    job: Job
    window: Window
    rows: list[ShardRow]
    num_rows_all: int
    offset: int
    mean: NDArray  # [S, B] nats per token, NaN without a finite point
    highest: NDArray  # [S, B] highest loss per token of a point, -inf without any
    lowest: NDArray  # [S, B] lowest, +inf without any
    tokens: NDArray  # [S, B] -1 where the shard was not seen; 0 where it was, without a finite point with tokens
    nonfinite: NDArray  # [S, B] points
    latest: NDArray  # [S] newest loss, NaN without any
    scale: (
        tuple[float, float, float] | None
    )  # 1st and 99th percentile of the means, and where a highest counts as spike


def heatmap(
    job: Job,
    *,
    since: int = 0,
    until: int | None = None,
    bins: int = 120,
    keys: Sequence[str] = (),
    search: str = "",
    attempt: Attempt | None = None,
    order: str = "category",
    offset: int = 0,
    width: int | None = None,
) -> Heatmap:
    """Cells of the steps [`since`, `until`), of the shards `keys` or of those whose id or category holds `search`.

    Raises `Invalid` for an unknown order or shard.
    """
    shards = _rows(job, keys, search)
    window = window_of(
        job, since=since, until=until, bins=bins, rows=min(len(shards), MAX_ROWS), attempt=attempt, width=width
    )
    num = max((s.index for s in shards), default=-1) + 1
    grid = grid_shards(window.segments, start=window.start, width=window.width, num_bins=window.num_bins, num=num)
    latest = latest_of(grid, window)
    shards = _ordered(shards, latest, order)
    rows = shards[offset : offset + MAX_ROWS]
    index = np.array([s.index for s in rows], np.int64)
    planes = {name: values[:, index].T for name, values in grid.items()}
    mean = mean_of(planes)
    return Heatmap(
        job=job, window=window, rows=rows, num_rows_all=len(shards), offset=offset, mean=mean,
        highest=planes["loss_max"], lowest=planes["loss_min"], tokens=tokens_of(planes),
        nonfinite=planes["num_nonfinite"], latest=latest[index], scale=scale_of(mean, planes["loss_max"]),
    )  # fmt: skip


def tokens_of(planes: Planes) -> NDArray:
    """Tokens of finite points; 0 where only empty or non-finite points came, -1 where none came at all."""
    seen = (planes["num_points"] + planes["num_nonfinite"] + planes["num_empty"]) > 0
    tokens: NDArray = np.where(seen, planes["tokens"], -1)
    return tokens


def latest_of(grid: Planes, window: Window) -> NDArray:
    """Newest loss per shard [S] from planes [B, S]: the mean over the last bins in which the shard was seen."""
    num_bins, num = grid["tokens"].shape
    latest = np.full(num, np.nan)
    if not num_bins:
        return latest
    span = max(1, math.ceil(num_bins * LATEST_STEPS))
    seen = grid["tokens"] > 0
    last = np.where(seen.any(axis=0), num_bins - 1 - np.argmax(seen[::-1], axis=0), -1)
    for s in np.flatnonzero(last >= 0):
        few = slice(max(0, last[s] - span + 1), last[s] + 1)
        latest[s] = grid["loss_sum"][few, s].sum() / grid["tokens"][few, s].sum()
    return latest


def scale_of(mean: NDArray, highest: NDArray) -> tuple[float, float, float] | None:
    """Limits of the colours, robust against outliers, and the value from which on a cell is marked as above the scale."""
    finite = mean[np.isfinite(mean)]
    if not len(finite):
        return None
    low, high = (float(v) for v in np.percentile(finite, (1, 99)))
    if high - low < 1e-3 * max(abs(high), 1e-9):
        low, high = low - 0.05 * max(abs(low), 1e-3), high + 0.05 * max(abs(high), 1e-3)
    peaks = highest[np.isfinite(highest)]
    spike = max(high, float(np.percentile(peaks, 99))) + 0.25 * (high - low)
    return low, high, spike


def digits_of(scale: tuple[float, float, float] | None) -> int:
    """Decimals that show four significant digits at the upper limit."""
    top = max(abs(scale[0]), abs(scale[1])) if scale else 1.0
    return int(np.clip(3 - math.floor(math.log10(max(top, 1e-12))), 0, 8))


def pauses_of(job: Job, rows: list[ShardRow]) -> list[tuple[int, int, int | None]]:
    """(row, first step, step of resumption or None) of every pause that a trainer applied."""
    place = {s.key: row for row, s in enumerate(rows)}
    applied = Directive.objects.filter(
        Q(action__in=("pause_shard", "resume_shard")) | Q(action="add_shard", args__resume=True),
        attempt__job=job, status="applied", applied_step__isnull=False,
    ).order_by("applied_step", "id").values_list("action", "args__shard", "applied_step")  # fmt: skip
    since: dict[str, int] = {}
    pauses: list[tuple[int, int, int | None]] = []
    for action, key, step in applied:
        if action == "pause_shard":
            since.setdefault(key, step or 0)
        elif key in since and key in place:
            pauses.append((place[key], since.pop(key), step))
    pauses += [(place[key], step, None) for key, step in since.items() if key in place]
    return pauses


def attempts_shown(job: Job) -> list[dict[str, Any]]:
    """Every attempt that reported, with the step from which on its numbers are lost (None if they all survive)."""
    attempts = list(job.attempts.order_by("fence"))
    shown: list[dict[str, Any]] = []
    for at, attempt in enumerate(attempts):
        cuts = [a.start_step for a in attempts[at + 1 :] if a.running_at or a.last_step >= 0]
        cut = min(cuts, default=None)
        if attempt.last_step >= 0:
            lost = cut if cut is not None and cut <= attempt.last_step else None
            shown.append(
                {"attempt": str(attempt.uuid), "fence": attempt.fence, "start_step": attempt.start_step,
                 "last_step": attempt.last_step, "lost_from": lost, "world_size": attempt.world_size, "status": attempt.status}
            )  # fmt: skip
    return shown


def _rows(job: Job, keys: Sequence[str], search: str) -> list[ShardRow]:
    columns = ("index", "shard__key", "shard__uuid", "shard__category", "weight", "paused", "hardness_score")
    shards = [ShardRow(*row) for row in JobShard.objects.filter(job=job).order_by("index").values_list(*columns)]
    if search:
        words = search.casefold()
        shards = [s for s in shards if words in s.key.casefold() or words in s.category.casefold()]
    if not keys:
        return shards
    wanted = set(keys)
    if unknown := sorted(wanted - {s.key for s in shards}):
        raise Invalid(f"Not a shard of this job: {', '.join(unknown[:5])}.", fields={"shards": ["Unknown shard."]})
    return [s for s in shards if s.key in wanted]


def _ordered(shards: list[ShardRow], latest: NDArray, order: str) -> list[ShardRow]:
    if order == "category":
        return sorted(shards, key=lambda s: (s.category, s.key))
    if order == "worst":
        return sorted(shards, key=lambda s: (math.isnan(latest[s.index]), -latest[s.index], s.key))
    if order == "hardness":
        return sorted(shards, key=lambda s: (-s.hardness_score, s.key))
    if order == "index":
        return shards
    raise Invalid(f"order is one of {', '.join(ORDERS)}.", fields={"order": [f"One of {', '.join(ORDERS)}."]})
