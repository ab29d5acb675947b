"""Exponential smoothing (Holt-Winters with damped trend, statsmodels), Hyndman et al., *Forecasting with ETS* (2008)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from statsmodels.tsa.holtwinters import ExponentialSmoothing

from forecasting.forecasters.base import Deadline, GuardedForecaster
from forecasting.forecasters.coarse import Grid, coarse_anchors, grid_of


@dataclass(frozen=True)
class Smoothing:
    """The parameters of the recursion l = alpha (y - s) + (1 - alpha)(l + phi b), and so on, as fitted."""

    alpha: float
    beta: float
    gamma: float
    phi: float
    level: float
    trend: float
    seasonal: tuple[float, ...]


class Ets(GuardedForecaster):
    """Damped trend, with an additive daily season when three days are known and it lowers the AICc.

    statsmodels finds the parameters on about hourly points; the recursion with them is our own, since one pass then
    gives the forecast from every past origin (for the bands) and an update costs no refit.
    """

    name = "ets"
    min_points = 12

    def _learn(self) -> None:
        deadline = Deadline(self.time_budget_s)
        self._grid: Grid = grid_of(self.history)
        points = self._grid.points(self.history)
        fits = [_fit(points, 0, deadline)]
        if self._grid.season and deadline.left_s > 0:
            fits.append(_fit(points, self._grid.season, deadline))
        best = min(fits, key=lambda fit: fit[0])
        self._model = best[1]
        self._fitted_at_s = self._grid.first_s(self.history)
        self._absorb()

    def _absorb(self) -> None:
        self._points = self._grid.points(self.history)
        self._shift = self._grid.steps_between(self.history, self._fitted_at_s)
        self._levels, self._trends, self._seasons = smooth(self._points, self._model, self._shift)

    def _anchors(self, horizon: int) -> np.ndarray:
        return coarse_anchors(self._grid, horizon) if hasattr(self, "_grid") else super()._anchors(horizon)

    def _spacing(self) -> int:
        return self._grid.stride

    def _centre(self, horizon: int) -> np.ndarray:
        steps = self._grid.steps(horizon)
        path = np.array([self._from_origins(ahead)[-1] for ahead in range(1, steps + 1)])
        return self._grid.fine(path, float(self.history.values[-1]), horizon)

    def _errors(self, ahead: int) -> np.ndarray:
        steps = max(1, round(ahead / self._grid.stride))
        forecasts = self._from_origins(steps)
        burn_in = min(len(forecasts) // 5, 24)
        return np.asarray(self._points[steps + burn_in :] - forecasts[burn_in:-steps])

    def _from_origins(self, steps: int) -> np.ndarray:
        """[C] the forecast ``steps`` ahead from each coarse point."""
        phi = self._model.phi
        damped = phi * (1 - phi**steps) / (1 - phi) if phi < 1 else float(steps)
        line = self._levels + damped * self._trends
        season = len(self._model.seasonal)
        if not season:
            return line
        # The season's newest estimate for the phase of origin + steps.
        phase = (np.arange(len(line)) + self._shift + steps) % season
        return np.asarray(line + self._seasons[np.arange(len(line)), phase])


def _fit(points: np.ndarray, season: int, deadline: Deadline) -> tuple[float, Smoothing]:
    """AICc and parameters. The points are scaled first: the optimiser's steps are made for numbers around one."""
    scale = float(points.std()) or 1.0
    scaled = points / scale
    model = ExponentialSmoothing(
        scaled,
        trend="add",
        damped_trend=True,
        seasonal="add" if season else None,
        seasonal_periods=season or None,
        initialization_method="heuristic" if len(points) >= 10 else "simple",
    )
    options: dict[str, Any] = {"callback": deadline, "options": {"maxiter": 60}}
    result = model.fit(use_brute=False, method="L-BFGS-B", minimize_kwargs=options)
    found = result.params
    seasonal = tuple(np.asarray(found["initial_seasons"], dtype=float) * scale) if season else ()
    smoothing = Smoothing(
        _share(found["smoothing_level"]),
        _share(found["smoothing_trend"]),
        _share(found["smoothing_seasonal"]) if season else 0.0,
        _share(found["damping_trend"]),
        float(found["initial_level"]) * scale,
        float(found["initial_trend"]) * scale,
        seasonal,
    )
    return float(result.aicc), smoothing


def _share(value: float) -> float:
    return float(np.clip(value, 0.0, 1.0)) if np.isfinite(value) else 0.0


def smooth(points: np.ndarray, model: Smoothing, shift: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Levels [C], trends [C] and the season's estimates [C, season] after each point.

    shift: by how many coarse steps the points begin later than those of the fit; the season keeps its phase.
    """
    season = len(model.seasonal)
    seasonal = np.array(model.seasonal, dtype=np.float64)
    level, trend = model.level, model.trend
    if shift:
        level, trend = points[0] - (seasonal[shift % season] if season else 0.0), 0.0
    levels, trends = np.empty(len(points)), np.empty(len(points))
    seasons = np.empty((len(points), season))
    for index, value in enumerate(points):
        phase = (index + shift) % season if season else 0
        ahead = level + model.phi * trend
        now = seasonal[phase] if season else 0.0
        new_level = model.alpha * (value - now) + (1 - model.alpha) * ahead
        trend = model.beta * (new_level - level) + (1 - model.beta) * model.phi * trend
        if season:
            seasonal[phase] = model.gamma * (value - ahead) + (1 - model.gamma) * now
            seasons[index] = seasonal
        level = new_level
        levels[index], trends[index] = level, trend
    return levels, trends, seasons
