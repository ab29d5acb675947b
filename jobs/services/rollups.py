"""Add points of a batch to the rollups of an attempt, at every level, within the caller's transaction.

The caller holds the lock on the attempt, so reading a row and writing it back cannot lose another writer's addition.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from django.db import connection
from django.db.models import Model
from numpy.typing import NDArray

from jobs.models import ShardBin, WorkerBin
from jobs.planes import (
    SHARD,
    WORKER,
    Layout,
    Planes,
    levels_of,
    planes_coarsen,
    planes_empty,
    planes_join,
    planes_pack,
    planes_unpack,
)

STEPS_AT_ONCE = 256  # bounds memory where a batch spans many steps of many shards


def shard_points_add(
    *,
    attempt_id: int,
    planned_steps: int | None,
    step: NDArray,
    index: NDArray,
    loss_sum: NDArray,
    tokens: NDArray,
    samples: NDArray,
    measured: NDArray,
) -> None:
    """Add points (arrays [P], `index` is `JobShard.index`); `measured` False marks a null that counts as nothing.

    A point whose loss is not finite is counted, and left out of sum, tokens, least and highest.
    """
    for chunk in _by_steps(step):
        bins, at = np.unique(step[chunk], return_inverse=True)
        points = _ShardPoints(at, index[chunk], loss_sum[chunk], tokens[chunk], samples[chunk], measured[chunk])
        _levels_add(ShardBin, SHARD, attempt_id, levels_of(planned_steps), bins, points.planes(len(bins)))


def worker_steps_add(
    *,
    attempt_id: int,
    planned_steps: int | None,
    step: NDArray,
    worker: NDArray,
    step_time_s: NDArray,
    wait_s: NDArray,
    tokens: NDArray,
    grad_norm: NDArray,
    nonfinite: NDArray,
    compute_s: NDArray,
    num_micro: NDArray,
) -> None:
    """Add optimizer steps of workers (arrays [P]); a NaN time, wait, norm, own work or number of micro-batches was not measured."""
    for chunk in _by_steps(step):
        bins, at = np.unique(step[chunk], return_inverse=True)
        num = int(worker[chunk].max()) + 1
        planes = planes_empty(WORKER, len(bins), num)
        where = (at, worker[chunk])
        timed = np.isfinite(step_time_s[chunk])
        np.add.at(planes["step_time_sum_s"], where, np.nan_to_num(step_time_s[chunk]))
        np.maximum.at(planes["step_time_max_s"], where, np.where(timed, step_time_s[chunk], -np.inf))
        np.add.at(planes["wait_sum_s"], where, np.nan_to_num(wait_s[chunk]))
        np.add.at(planes["tokens"], where, tokens[chunk])
        np.add.at(planes["num_steps"], where, timed.astype("<u4"))
        norm = np.where(np.isfinite(grad_norm[chunk]), grad_norm[chunk], -np.inf)
        np.maximum.at(planes["grad_norm_max"], where, norm)
        np.add.at(planes["num_nonfinite"], where, nonfinite[chunk].astype("<u4"))
        own = np.isfinite(compute_s[chunk]) & np.isfinite(num_micro[chunk])
        np.add.at(planes["compute_sum_s"], where, np.where(own, compute_s[chunk], 0.0))
        np.add.at(planes["num_micro"], where, np.where(own, num_micro[chunk], 0.0))
        np.add.at(planes["num_own"], where, own.astype("<u4"))
        _levels_add(WorkerBin, WORKER, attempt_id, levels_of(planned_steps), bins, planes)


class _ShardPoints:
    """Points of at most `STEPS_AT_ONCE` steps on their way into planes. `at` [P] says which of the bins a point is in."""

    def __init__(
        self, at: NDArray, index: NDArray, loss_sum: NDArray, tokens: NDArray, samples: NDArray, measured: NDArray
    ) -> None:
        self.at, self.index, self.loss_sum, self.tokens, self.samples = at, index, loss_sum, tokens, samples
        self.num = int(index.max()) + 1
        finite, full = np.isfinite(loss_sum), tokens > 0
        self.good = measured & full & finite
        self.bad = measured & full & ~finite
        self.empty = measured & ~full

    def planes(self, num_bins: int) -> Planes:
        shape = (num_bins, self.num)
        flat, size = self.at * self.num + self.index, num_bins * self.num
        planes = planes_empty(SHARD, num_bins, self.num)
        good, bad = flat[self.good], flat[self.bad]
        loss, tokens = self.loss_sum[self.good], self.tokens[self.good]
        # bincount adds in double precision, which is exact for counts below 2**53.
        planes["loss_sum"] = np.bincount(good, loss, size).reshape(shape)
        planes["tokens"] = np.bincount(good, tokens, size).astype("<i8").reshape(shape)
        planes["samples"] = np.bincount(flat, self.samples, size).astype("<i8").reshape(shape)
        planes["num_points"] = np.bincount(good, minlength=size).astype("<u4").reshape(shape)
        planes["num_empty"] = np.bincount(flat[self.empty], minlength=size).astype("<u4").reshape(shape)
        planes["num_nonfinite"] = np.bincount(bad, minlength=size).astype("<u4").reshape(shape)
        mean = loss / tokens
        np.minimum.at(planes["loss_min"].reshape(-1), good, mean)
        np.maximum.at(planes["loss_max"].reshape(-1), good, mean)
        return planes


def _by_steps(step: NDArray) -> Iterator[NDArray]:
    """Positions of the points, in pieces of at most `STEPS_AT_ONCE` different steps."""
    different = np.unique(step)
    for start in range(0, len(different), STEPS_AT_ONCE):
        piece = different[start : start + STEPS_AT_ONCE]
        yield np.flatnonzero((step >= piece[0]) & (step <= piece[-1]))


def _levels_add(
    model: type[Model], layout: Layout, attempt_id: int, levels: range, bins: NDArray, planes: Planes
) -> None:
    """Join the new bins of every level with what is stored, and store the result: two statements."""
    fresh: list[tuple[NDArray, Planes]] = []
    for _ in levels:
        fresh.append((bins, planes))
        bins, planes = planes_coarsen(layout, bins, planes)
    table = model._meta.db_table
    stored = _stored(table, attempt_id, [bins for bins, _ in fresh])
    rows: list[tuple[int, int, int, int, bytes]] = []
    for level, (bins, planes) in enumerate(fresh):
        joined = _joined(layout, bins, planes, stored[level])
        num = joined[layout[0][0]].shape[1]
        rows += [(attempt_id, level, int(b), num, planes_pack(layout, joined, i)) for i, b in enumerate(bins)]
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {table} (attempt_id, level, bin, num, payload) VALUES (%s, %s, %s, %s, %s)"
            " ON CONFLICT (attempt_id, level, bin) DO UPDATE SET num = excluded.num, payload = excluded.payload",
            rows,
        )


Row = tuple[int, int, bytes]  # bin, num, payload


def _stored(table: str, attempt_id: int, bins: list[NDArray]) -> list[list[Row]]:
    """Stored rows of each level among `bins` of that level. Plain SQL: building it in the ORM would cost more than running it."""
    parts, values = [], []
    for level, wanted in enumerate(bins):
        marks = ",".join(["%s"] * len(wanted))
        parts.append(
            f"SELECT level, bin, num, payload FROM {table} WHERE attempt_id = %s AND level = {level} AND bin IN ({marks})"
        )
        values += [attempt_id, *wanted.tolist()]
    found: list[list[Row]] = [[] for _ in bins]
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(parts), values)
        for level, b, num, payload in cursor.fetchall():
            found[level].append((b, num, payload))
    return found


def _joined(layout: Layout, bins: NDArray, planes: Planes, stored: list[Row]) -> Planes:
    """`planes` plus stored rows of the same bins; wider if a stored row is."""
    if not stored:
        return planes
    num = max(planes[layout[0][0]].shape[1], max(row[1] for row in stored))
    joined = planes_empty(layout, len(bins), num)
    for name, _, _ in layout:
        joined[name][:, : planes[name].shape[1]] = planes[name]
    for b, n, payload in stored:
        planes_join(layout, joined, int(np.searchsorted(bins, b)), planes_unpack(layout, payload, n))
    return joined
