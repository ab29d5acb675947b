"""Losses for the report: per shard in the first and last window of the job, and around the step where a decision took effect.

S shards, B bins of `width` steps on the surviving branch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.models import Job
from jobs.selectors.series import ShardSeries, shard_series

MAX_BINS = 2000
WINDOW_SHARE = 0.1  # of the job's bins


@dataclass(frozen=True)
class Losses:
    """Pooled losses (sum over tokens) of windows of a series."""

    series: ShardSeries
    window: int  # bins of the first and of the last window

    def of_shard(self, key: str) -> dict[str, Any]:
        """First and last loss, tokens, samples and non-finite points of one shard."""
        s = self._row(key)
        if s is None:
            return {
                "loss_first": None,
                "loss_last": None,
                "change": None,
                "tokens": 0,
                "samples": 0,
                "num_nonfinite": 0,
            }
        seen = np.flatnonzero(self.series.tokens[s] > 0)  # a shard's own first and last: it may come late or be paused
        first = self._pooled(s, seen[: self.window])
        last = self._pooled(s, seen[-self.window :])
        return {
            "loss_first": first,
            "loss_last": last,
            "change": None if first is None or last is None else round(last - first, 6),
            "tokens": int(self.series.tokens[s].sum()),
            "samples": int(self.series.samples[s].sum()),
            "num_points": int(self.series.num_points[s].sum()),
            "num_nonfinite": int(self.series.num_nonfinite[s].sum()),
        }

    def around(self, key: str | None, step: int | None) -> dict[str, Any]:
        """Loss of a shard in the window before and in the window after `step`."""
        s = self._row(key) if key is not None else None
        if s is None or step is None:
            return {"loss_before": None, "loss_after": None}
        with_data = self.series.tokens[s] > 0
        before = np.flatnonzero(with_data & (self.series.bins + self.series.width <= step))
        after = np.flatnonzero(with_data & (self.series.bins >= step))
        return {
            "loss_before": self._pooled(s, before[-self.window :]),
            "loss_after": self._pooled(s, after[-self.window :]),
        }

    def totals(self) -> dict[str, Any]:
        """Over all shards of the surviving branch."""
        return {
            "tokens": int(self.series.tokens.sum()),
            "samples": int(self.series.samples.sum()),
            "num_nonfinite": int(self.series.num_nonfinite.sum()),
            "num_bins": len(self.series.bins),
            "bin_steps": self.series.width,
        }

    def overall(self) -> dict[str, Any]:
        """Loss of the whole mixture in the first and the last window."""
        loss, tokens = self.series.loss_sum.sum(axis=0), self.series.tokens.sum(axis=0)
        return {
            "first": _ratio(loss[: self.window], tokens[: self.window]),
            "last": _ratio(loss[-self.window :], tokens[-self.window :]),
            "window_steps": self.window * self.series.width,
        }

    def _row(self, key: str) -> int | None:
        return self.series.keys.index(key) if key in self.series.keys else None

    def _pooled(self, s: int, columns: NDArray) -> float | None:
        return _ratio(self.series.loss_sum[s, columns], self.series.tokens[s, columns])


def losses_of(job: Job) -> Losses:
    """The job's series at the finest level that has at most `MAX_BINS` bins."""
    level = 0
    while job.current_step / 4**level > MAX_BINS:
        level += 1
    series = shard_series(job, level=level)
    return Losses(series, max(1, int(len(series.bins) * WINDOW_SHARE)))


def _ratio(loss_sum: NDArray, tokens: NDArray) -> float | None:
    total = float(tokens.sum())
    return round(float(loss_sum.sum()) / total, 6) if total > 0 else None
