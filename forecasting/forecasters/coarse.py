"""A history thinned to about hourly points, for models whose fit takes longer the more points there are.

Shape letters: K ticks, C coarse points, J coarse steps ahead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.forecasters.prepare import History

MAX_COARSE = 400
_STEP_S = 3600.0


@dataclass(frozen=True)
class Grid:
    """Every ``stride``-th tick, counted back from the last one, so that the newest value is always a coarse point."""

    stride: int
    season: int

    def points(self, history: History) -> np.ndarray:
        """[C] the coarse points, at most MAX_COARSE."""
        return history.values[::-1][:: self.stride][:MAX_COARSE][::-1]

    def fine(self, coarse: np.ndarray, last: float, horizon: int) -> np.ndarray:
        """[H] a coarse path [J] drawn on the ticks, starting from the last value."""
        nodes = np.arange(len(coarse) + 1) * self.stride
        return np.interp(np.arange(1, horizon + 1), nodes, np.append(last, coarse))

    def first_s(self, history: History) -> float:
        """When the first coarse point is, in unix seconds (or seconds since the start of a history without a clock)."""
        num = min(MAX_COARSE, -(-len(history) // self.stride))
        return history.end_s - history.gap_s * (1 + (num - 1) * self.stride)

    def steps_between(self, history: History, first_s: float) -> int:
        """By how many coarse steps the points begin later than ``first_s``."""
        return round((self.first_s(history) - first_s) / (self.stride * history.gap_s))

    def steps(self, horizon: int) -> int:
        """J: how many coarse steps reach the horizon."""
        return -(-horizon // self.stride)


def grid_of(history: History) -> Grid:
    """Hourly points where ticks are finer than that, with a season of a day when three days are known."""
    stride = max(1, round(_STEP_S / history.gap_s))
    season = round(86_400 / (history.gap_s * stride))
    long_enough = season >= 2 and len(history) // stride >= 3 * season
    return Grid(stride, season if long_enough else 0)


def coarse_anchors(grid: Grid, horizon: int) -> np.ndarray:
    """Band anchors at whole coarse steps."""
    steps = np.unique(np.round(np.geomspace(1, max(1, grid.steps(horizon)), 8)).astype(int))
    return steps * grid.stride
