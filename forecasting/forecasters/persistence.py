"""Persistence: tomorrow is as now. Spot prices are close to a random walk, so this is the baseline to beat."""

from __future__ import annotations

import numpy as np

from forecasting.forecasters.base import GuardedForecaster


class Persistence(GuardedForecaster):
    """The last value held; bands from all past changes over the same number of ticks."""

    name = "persistence"
    min_points = 2

    def _learn(self) -> None:
        return

    def _centre(self, horizon: int) -> np.ndarray:
        return np.full(horizon, self.history.values[-1])

    def _errors(self, ahead: int) -> np.ndarray:
        values = self.history.values
        return np.asarray(values[ahead:] - values[:-ahead])

    def _project(self, horizon: int, levels: object) -> tuple[np.ndarray, np.ndarray]:
        return self._persist(horizon, levels)  # type: ignore[arg-type]
