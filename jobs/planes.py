"""Rollup arrays: which planes there are, how they add up, and how they lie in a row. No Django in here.

Shapes: B bins (axis 0), N shards or workers (axis 1). Legend of a plane: name, dtype in memory and on disk, how two bins join.
"""

from __future__ import annotations

import threading
from typing import Final, Literal

import numpy as np
import zstandard
from numpy.typing import NDArray

Join = Literal["add", "min", "max"]
Layout = tuple[tuple[str, str, Join], ...]
Planes = dict[str, NDArray]  # each [B, N], or [N] for one bin

FACTOR: Final = 4
LEVELS: Final = range(7)  # bins of 1, 4, 16, 64, 256, 1024 and 4096 steps
FEW_BINS: Final = 128  # a level coarser than one with so few bins saves nobody time


def levels_of(planned_steps: int | None) -> range:
    """Levels that an attempt of so many steps keeps; all of them if nobody knows."""
    if planned_steps is None:
        return LEVELS
    return range(next((level + 1 for level in LEVELS if planned_steps <= FEW_BINS * FACTOR**level), len(LEVELS)))


SHARD: Final[Layout] = (
    ("loss_sum", "<f8", "add"),  # nats, finite points with tokens only
    ("tokens", "<i8", "add"),  # supervised tokens of those points
    ("samples", "<i8", "add"),
    ("num_points", "<u4", "add"),  # points with tokens, finite
    ("num_nonfinite", "<u4", "add"),
    ("num_empty", "<u4", "add"),  # points without a supervised token: seen, but no data
    ("loss_min", "<f8", "min"),  # lowest and highest loss per token of one point; +inf and -inf without any
    ("loss_max", "<f8", "max"),
)
WORKER: Final[Layout] = (
    ("step_time_sum_s", "<f8", "add"),
    ("step_time_max_s", "<f8", "max"),
    ("wait_sum_s", "<f8", "add"),
    ("tokens", "<i8", "add"),
    ("num_steps", "<u4", "add"),  # steps with a time
    ("grad_norm_max", "<f8", "max"),
    ("num_nonfinite", "<u4", "add"),  # steps whose gradient norm was not finite
    ("compute_sum_s", "<f8", "add"),  # own work in steps whose micro-batches were counted
    ("num_micro", "<f8", "add"),  # micro-batches of those steps
    ("num_own", "<u4", "add"),  # those steps
)
NEUTRAL: Final[dict[Join, float]] = {"add": 0, "min": np.inf, "max": -np.inf}
UFUNC: Final[dict[Join, np.ufunc]] = {"add": np.add, "min": np.minimum, "max": np.maximum}

_local = threading.local()  # zstd contexts may not be shared between threads


def compress(data: bytes) -> bytes:
    """zstd, fastest level worth having."""
    if not hasattr(_local, "out"):
        _local.out = zstandard.ZstdCompressor(level=1)
    return _local.out.compress(data)


def decompress(data: bytes | memoryview) -> bytes:
    if not hasattr(_local, "into"):
        _local.into = zstandard.ZstdDecompressor()
    return _local.into.decompress(data)


def planes_empty(layout: Layout, num_bins: int, num: int) -> Planes:
    """Planes [B, N] in which nothing has happened yet."""
    return {name: np.full((num_bins, num), NEUTRAL[join], dtype) for name, dtype, join in layout}


def planes_pack(layout: Layout, planes: Planes, row: int) -> bytes:
    """Bin `row` of planes [B, N] as bytes for the database."""
    return compress(b"".join(planes[name][row].astype(dtype, copy=False).tobytes() for name, dtype, _ in layout))


def planes_unpack(layout: Layout, payload: bytes | memoryview, num: int) -> Planes:
    """One bin from the database: read-only arrays [N]. Planes that are younger than the row are as if nothing had happened."""
    data = decompress(payload)
    planes: Planes = {}
    offset = 0
    for name, dtype, join in layout:
        if offset == len(data) and offset:
            planes[name] = np.full(num, NEUTRAL[join], dtype)
            continue
        planes[name] = np.frombuffer(data, dtype, num, offset)
        offset += num * np.dtype(dtype).itemsize
    assert offset == len(data), "rollup row of another layout"
    return planes


def planes_join(layout: Layout, into: Planes, row: int, other: Planes) -> None:
    """Join one stored bin [M], M <= N, into bin `row` of planes [B, N]."""
    for name, _, join in layout:
        values = other[name]
        target = into[name][row, : values.shape[0]]
        UFUNC[join](target, values, out=target)


def planes_coarsen(layout: Layout, bins: NDArray, planes: Planes) -> tuple[NDArray, Planes]:
    """The same numbers one level up: sorted bins [B] and planes [B, N] -> bins // 4 without repeats, and their planes."""
    coarse = bins // FACTOR
    starts = np.flatnonzero(np.diff(coarse, prepend=coarse[0] - 1))
    if len(starts) == len(bins):
        return coarse, planes
    return coarse[starts], {name: UFUNC[join].reduceat(planes[name], starts, axis=0) for name, _, join in layout}
