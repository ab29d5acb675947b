"""How good forecasts were: errors at rolling origins, against persistence on the very same origins.

Shape letters: H horizon, Q quantile levels.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from forecasting.forecasters.base import Forecast, Forecaster
from forecasting.forecasters.prepare import History

# Levels at which distributions are scored; the outer pairs give the 80 % band.
SCORED_LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)


@dataclass(frozen=True)
class Score:
    """Means over origins and ticks ahead.

    mae: of the median line, in the unit of the series. mase: that over persistence's on the same origins (below 1 is
    better than persistence). pinball: mean quantile loss. coverage_80: share of values in the 80 % band, edges included.
    """

    model: str
    mae: float
    mase: float
    pinball: float
    coverage_80: float
    num_origins: int
    seconds: float
    fallback: str | None = None

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Backtest:
    """Per origin: mean absolute error, mean pinball loss, mean coverage."""

    model: str
    mae: np.ndarray
    pinball: np.ndarray
    covered: np.ndarray
    seconds: float
    fallback: str | None


def origins_of(num_points: int, horizon: int, num_origins: int, share: float = 0.6) -> np.ndarray:
    """Where to stand: evenly spread over the last ``share`` of a history, each with a whole horizon behind it."""
    last = num_points - horizon
    first = max(2, min(last, int(num_points * (1 - share))))
    return np.unique(np.linspace(first, last, num_origins).astype(int)) if last >= 2 else np.zeros(0, dtype=int)


def backtest(forecaster: Forecaster, history: History, origins: np.ndarray, horizon: int) -> Backtest:
    """Fit once before the first origin, then update from origin to origin and score each forecast."""
    began = time.perf_counter()
    forecaster.fit(history.head(int(origins[0])))
    rows, fallback, at = [], None, int(origins[0])
    for origin in origins:
        if origin > at:
            forecaster.update(history.values[at:origin])
            at = int(origin)
        forecast = forecaster.predict(horizon, SCORED_LEVELS)
        fallback = fallback or forecast.fallback
        rows.append(losses(forecast, history.values[origin : origin + horizon]))
    mae, pinball, covered = np.array(rows).T
    return Backtest(forecaster.name, mae, pinball, covered, time.perf_counter() - began, fallback)


def losses(forecast: Forecast, truth: np.ndarray) -> tuple[float, float, float]:
    """Mean absolute error of the median line, mean pinball loss, share within the 80 % band."""
    low, high = forecast.band(0.8)
    slack = 1e-9 * (1 + np.abs(truth))
    covered = (truth >= low - slack) & (truth <= high + slack)
    error = truth[None, :] - forecast.quantiles
    level = np.asarray(forecast.levels)[:, None]
    pinball = np.maximum(level * error, (level - 1) * error)
    return float(np.abs(truth - forecast.level(0.5)).mean()), float(pinball.mean()), float(covered.mean())


def fair_coverage(forecast: Forecast, truth: np.ndarray, coverage: float = 0.8) -> float:
    """Coverage of a central band when values repeat: a value on an edge counts by the share of its mass inside.

    Prices stand still most of the time, so that any band that holds the last price covers far more than it says. This
    is the mean of the non-randomised PIT over the band (Czado, Gneiting and Held 2009), from a dense set of quantiles.
    """
    level = np.asarray(forecast.levels)
    low, high = (1 - coverage) / 2, (1 + coverage) / 2
    slack = 1e-9 * (1 + np.abs(truth))
    # Share of levels strictly below, and at or below, each value.
    under = (forecast.quantiles < truth - slack).sum(axis=0) / len(level)
    upto = (forecast.quantiles <= truth + slack).sum(axis=0) / len(level)
    mass = upto - under
    inside = np.clip(np.minimum(upto, high) - np.maximum(under, low), 0, None)
    share = np.divide(inside, mass, out=((under >= low) & (under <= high)).astype(float), where=mass > 0)
    return float(share.mean())


def scores_of(tests: Sequence[Backtest], baseline: str = "persistence") -> list[Score]:
    """One line per model, best first by error."""
    base = next((float(test.mae.mean()) for test in tests if test.model == baseline), 0.0)
    found = []
    for test in tests:
        mae = float(test.mae.mean())
        ratio = mae / base if base > 0 else (1.0 if mae == 0 else np.inf)
        pinball, covered = float(test.pinball.mean()), float(test.covered.mean())
        seconds = round(test.seconds, 4)
        found.append(Score(test.model, mae, min(ratio, 1e6), pinball, covered, len(test.mae), seconds, test.fallback))
    return sorted(found, key=lambda score: score.mae)
