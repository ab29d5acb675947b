"""Seasonal naive: as at the same time yesterday."""

from __future__ import annotations

import numpy as np

from forecasting.forecasters.base import GuardedForecaster


class SeasonalNaive(GuardedForecaster):
    """The value one season (a day, or ``season`` ticks) before; needs two seasons to know its errors."""

    name = "seasonal_naive"
    min_points = 4

    def __init__(self, target: str | None = None, *, season: int | None = None, time_budget_s: float = 2.0) -> None:
        super().__init__(target, time_budget_s=time_budget_s)
        self._given_season = season
        self._season = 0

    def _learn(self) -> None:
        self._season = self._given_season or self.history.ticks_per_day()
        if self._season < 2 or len(self.history) < 2 * self._season:
            raise ValueError(f"{len(self.history)} points, two seasons of {self._season} ticks are needed")

    def _centre(self, horizon: int) -> np.ndarray:
        return self.history.values[-self._season :][np.arange(horizon) % self._season]

    def _errors(self, ahead: int) -> np.ndarray:
        back = self._season * -(-ahead // self._season)
        values = self.history.values
        return np.asarray(values[back:] - values[:-back])
