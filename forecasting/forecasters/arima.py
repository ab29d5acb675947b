"""ARIMA(p,1,q) on about hourly points with a daily Fourier term (dynamic harmonic regression); statsmodels fits it.

Box and Jenkins; the Fourier regression follows Hyndman and Athanasopoulos, *Forecasting: Principles and Practice*, 10.5.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats
from scipy.signal import lfilter
from statsmodels.tsa.arima.estimators.hannan_rissanen import hannan_rissanen
from statsmodels.tsa.arima.estimators.innovations import innovations_mle

from forecasting.forecasters.base import Deadline, GuardedForecaster, OutOfTime
from forecasting.forecasters.coarse import Grid, coarse_anchors, grid_of

# C coarse points, J coarse steps ahead. Orders are tried in this order while the time budget lasts.
ORDERS = ((0, 1), (1, 0), (1, 1), (2, 1))
_HARMONICS = 2
_SIGNIFICANT = 0.01
# An order must lower the AICc by this much to be preferred to a simpler one.
_WORTH = 4.0


class Arima(GuardedForecaster):
    """The order with the lowest AICc among :data:`ORDERS` and a plain random walk.

    After the fit the model is a linear filter, so the forecasts from all past origins (for the bands) and an update
    need no optimiser.
    """

    name = "arima"
    min_points = 12

    def _learn(self) -> None:
        self._grid: Grid = grid_of(self.history)
        self._fitted_at_s = self._grid.first_s(self.history)
        steps = np.diff(self._grid.points(self.history))
        self._scale = float(steps.std()) or 1.0
        self._season = _seasonal_steps(steps / self._scale, self._grid.season)
        self._ar, self._ma = _best_order(self._without_season(steps / self._scale, 0), Deadline(self.time_budget_s))
        self._absorb()

    def _absorb(self) -> None:
        self._points = self._grid.points(self.history)
        self._shift = self._grid.steps_between(self.history, self._fitted_at_s)
        steps = self._without_season(np.diff(self._points) / self._scale, self._shift)
        self._paths = Paths(steps, self._ar, self._ma)

    def _without_season(self, steps: np.ndarray, shift: int) -> np.ndarray:
        if not len(self._season):
            return steps
        return np.asarray(steps - self._season[(np.arange(len(steps)) + shift) % len(self._season)])

    def _anchors(self, horizon: int) -> np.ndarray:
        return coarse_anchors(self._grid, horizon) if hasattr(self, "_grid") else super()._anchors(horizon)

    def _spacing(self) -> int:
        return self._grid.stride

    def _centre(self, horizon: int) -> np.ndarray:
        path = np.array([self._from_origins(ahead)[-1] for ahead in range(1, self._grid.steps(horizon) + 1)])
        return self._grid.fine(path, float(self.history.values[-1]), horizon)

    def _errors(self, ahead: int) -> np.ndarray:
        steps = max(1, round(ahead / self._grid.stride))
        return np.asarray(self._points[1 + steps :] - self._from_origins(steps)[:-steps])

    def _from_origins(self, steps: int) -> np.ndarray:
        """[C - 1] the forecast ``steps`` ahead from each coarse point but the first."""
        change = self._paths.total(steps)
        if len(self._season):
            phase = np.arange(len(change)) + self._shift + 1
            total = np.concatenate([[0.0], np.cumsum(np.tile(self._season, 2 + steps // len(self._season)))])
            start = phase % len(self._season)
            change = change + total[start + steps] - total[start]
        return np.asarray(self._points[1:] + self._scale * change)


class Paths:
    """Summed ARMA forecasts from every origin, computed step by step and kept."""

    def __init__(self, steps: np.ndarray, ar: np.ndarray, ma: np.ndarray) -> None:
        self._ar, self._ma = ar, ma
        shocks = lfilter(np.append(1.0, -ar), np.append(1.0, ma), steps)
        lags = max(len(ar), len(ma), 1)
        self._past = [_lagged(steps, lag) for lag in range(lags)]
        self._shocks = [_lagged(shocks, lag) for lag in range(lags)]
        self._ahead: list[np.ndarray] = []
        self._sums: list[np.ndarray] = [np.zeros(len(steps))]

    def total(self, steps: int) -> np.ndarray:
        """[C - 1] sum of the forecasts 1 .. steps ahead."""
        while len(self._sums) <= steps:
            ahead = len(self._ahead) + 1
            value = np.zeros(len(self._sums[0]))
            for lag, weight in enumerate(self._ar, start=1):
                value += weight * (self._ahead[ahead - lag - 1] if lag < ahead else self._past[lag - ahead])
            for lag, weight in enumerate(self._ma, start=1):
                if lag >= ahead:
                    value += weight * self._shocks[lag - ahead]
            self._ahead.append(value)
            self._sums.append(self._sums[-1] + value)
        return self._sums[steps]


def _lagged(values: np.ndarray, lag: int) -> np.ndarray:
    return np.concatenate([np.zeros(lag), values[: len(values) - lag]])


def _seasonal_steps(steps: np.ndarray, season: int) -> np.ndarray:
    """[season] the mean step per phase as a Fourier series, or empty when an F-test does not call for it."""
    if not season:
        return np.zeros(0)
    angle = 2 * np.pi * np.arange(len(steps)) / season
    waves = [wave(k * angle) for k in range(1, min(_HARMONICS, season // 2) + 1) for wave in (np.sin, np.cos)]
    columns = np.column_stack(waves)
    weights, *_ = np.linalg.lstsq(columns, steps, rcond=None)
    rest = float(((steps - columns @ weights) ** 2).sum())
    free = len(steps) - len(weights)
    gained = float((steps**2).sum()) - rest
    if free <= 0 or rest <= 0 or stats.f.sf(gained / len(weights) / (rest / free), len(weights), free) > _SIGNIFICANT:
        return np.zeros(0)
    return np.asarray((columns @ weights)[:season])


def _best_order(steps: np.ndarray, deadline: Deadline) -> tuple[np.ndarray, np.ndarray]:
    """Autoregressive and moving-average weights with the lowest AICc; none at all is a random walk.

    Orders are compared by Hannan-Rissanen estimates, which need no optimiser; only the best is fitted by likelihood.
    """
    best, weights = _aicc(steps, np.zeros(0), np.zeros(0)), (np.zeros(0), np.zeros(0))
    for p, q in ORDERS:
        if len(steps) < 20 * (p + q) or deadline.left_s <= 0:
            break
        try:
            found, _ = hannan_rissanen(steps, ar_order=p, ma_order=q, demean=False)
        except (ValueError, np.linalg.LinAlgError):
            continue
        ar, ma = _weights(found)
        score = _aicc(steps, ar, ma)
        if score < best - _WORTH:
            best, weights = score, (ar, ma)
    return _refined(steps, *weights, best, deadline)


def _refined(
    steps: np.ndarray, ar: np.ndarray, ma: np.ndarray, score: float, deadline: Deadline
) -> tuple[np.ndarray, np.ndarray]:
    """The same order by maximum likelihood, when there is time and it is better."""
    if not len(ar) + len(ma):
        return ar, ma
    options = {"callback": deadline, "options": {"maxiter": 30}}
    try:
        found, _ = innovations_mle(
            steps, order=(len(ar), 0, len(ma)), demean=False, start_params=None, minimize_kwargs=options
        )
    except (ValueError, np.linalg.LinAlgError, OutOfTime):
        return ar, ma
    better = _weights(found)
    return better if _aicc(steps, *better) < score else (ar, ma)


def _weights(found: object) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(found.ar_params, dtype=float), np.asarray(found.ma_params, dtype=float)  # type: ignore[attr-defined]


def _aicc(steps: np.ndarray, ar: np.ndarray, ma: np.ndarray) -> float:
    """Corrected information criterion of the one-step errors; infinite for weights that are not stable."""
    if not _is_stable(ar, ma):
        return np.inf
    rest = lfilter(np.append(1.0, -ar), np.append(1.0, ma), steps)
    num, free = len(steps), len(ar) + len(ma) + 1
    score = num * np.log(float((rest**2).mean()) or 1e-300) + 2 * free * num / max(1, num - free - 1)
    return float(score) if np.isfinite(score) else np.inf


def _is_stable(ar: Sequence[float] | np.ndarray, ma: Sequence[float] | np.ndarray) -> bool:
    """Whether forecasts fade and shocks can be recovered: the roots lie clearly inside the unit circle."""
    roots = [np.roots(np.append(1.0, -np.asarray(ar))), np.roots(np.append(1.0, np.asarray(ma)))]
    return all(float(np.abs(found).max(initial=0.0)) < 0.995 for found in roots)
