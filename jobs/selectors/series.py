"""Loss per shard over steps as arrays, for rules and reports."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jobs.models import Job, JobShard
from jobs.planes import FACTOR
from jobs.selectors.branches import segments_surviving
from jobs.selectors.grids import grid_shards


@dataclass(frozen=True)
class ShardSeries:
    """Sums per shard and bin over the surviving branch. S shards (order of `JobShard.index`), B bins.

    Loss per token is `loss_sum / tokens`; a cell with `tokens` 0 has no data. Non-finite points are counted and left out.
    """

    keys: tuple[str, ...]  # [S] shard keys
    indices: NDArray  # [S] JobShard.index
    bins: NDArray  # [B] first step of each bin
    width: int  # steps per bin, 4**level
    loss_sum: NDArray  # [S, B] nats
    tokens: NDArray  # [S, B]
    samples: NDArray  # [S, B]
    num_points: NDArray  # [S, B]
    num_nonfinite: NDArray  # [S, B]
    num_empty: NDArray  # [S, B] points without a supervised token
    loss_min: NDArray  # [S, B] lowest loss per token of one point, +inf without any
    loss_max: NDArray  # [S, B] highest, -inf without any


def shard_series(job: Job, since_step: int = 0, level: int = 0) -> ShardSeries:
    """The series of every shard of `job` from the bin that holds `since_step` to the newest step."""
    segments = segments_surviving(job)
    width = FACTOR**level
    start = max(since_step, 0) // width * width
    stop = max((s.stop for s in segments), default=0)
    num_bins = max(0, -(-(stop - start) // width))
    shards = list(JobShard.objects.filter(job=job).order_by("index").values_list("index", "shard__key"))
    indices = np.array([index for index, _ in shards], np.int64)
    num = int(indices.max()) + 1 if len(indices) else 0
    grid = grid_shards(segments, start=start, width=width, num_bins=num_bins, num=num)
    planes = {name: np.ascontiguousarray(values[:, indices].T) for name, values in grid.items()}
    return ShardSeries(
        keys=tuple(key for _, key in shards),
        indices=indices,
        bins=start + width * np.arange(num_bins),
        width=width,
        **planes,
    )
