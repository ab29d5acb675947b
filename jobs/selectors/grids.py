"""Rollups of a branch as arrays [B, N]: the one reader behind series, heatmap, workers and live deltas."""

from __future__ import annotations

import numpy as np
from django.db.models import Model

from jobs.models import ShardBin, WorkerBin
from jobs.planes import FACTOR, LEVELS, SHARD, WORKER, Layout, Planes, planes_empty, planes_join, planes_unpack
from jobs.selectors.branches import Piece, Segment, pieces


def grid_shards(segments: list[Segment], *, start: int, width: int, num_bins: int, num: int) -> Planes:
    """Planes `SHARD` [B, S] of the bins [start + b*width, start + (b+1)*width); `num` is S. `start` is a multiple of `width`."""
    return _grid(ShardBin, SHARD, segments, start=start, width=width, num_bins=num_bins, num=num)


def grid_workers(segments: list[Segment], *, start: int, width: int, num_bins: int, num: int) -> Planes:
    """Planes `WORKER` [B, W], as `grid_shards`."""
    return _grid(WorkerBin, WORKER, segments, start=start, width=width, num_bins=num_bins, num=num)


def level_of(width: int) -> int:
    """The coarsest level whose bins fill bins of `width` steps without a rest."""
    return max(level for level in LEVELS if width % FACTOR**level == 0)


def _grid(
    model: type[Model], layout: Layout, segments: list[Segment], *, start: int, width: int, num_bins: int, num: int
) -> Planes:
    assert start % width == 0, "bins start at multiples of their width"
    grid = planes_empty(layout, num_bins, num)
    for piece in pieces(segments, start=start, stop=start + width * num_bins, level=level_of(width)):
        size = FACTOR**piece.level
        for b, n, payload in _rows(model, piece):
            one = planes_unpack(layout, payload, n)
            if n > num:
                one = {name: values[:num] for name, values in one.items()}
            planes_join(layout, grid, (b * size - start) // width, one)
    return grid


def _rows(model: type[Model], piece: Piece) -> list[tuple[int, int, bytes]]:
    return list(
        model._default_manager.filter(
            attempt_id=piece.attempt_id, level=piece.level, bin__gte=piece.first, bin__lt=piece.last
        )
        .order_by()
        .values_list("bin", "num", "payload")
    )


def mean_of(planes: Planes) -> np.ndarray:
    """Loss per token [B, S]; NaN where there was no finite point with tokens."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean: np.ndarray = planes["loss_sum"] / planes["tokens"]
    return mean
