"""Chooses a forecaster per series by its errors at rolling origins, and keeps the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from forecasting.forecasters.base import LEVELS, Forecast, Forecaster
from forecasting.forecasters.prepare import prepare
from forecasting.forecasters.scores import Backtest, Score, backtest, origins_of, scores_of

PRICE_MODELS = ("persistence", "seasonal_naive", "ets", "arima")
COUNT_MODELS = ("persistence", "seasonal_naive", "hazard")
# A model replaces persistence only when it was better by this share, by this many standard errors of the paired
# differences, and at this share of the origins where the two differ: on near random walks a trend of some days looks
# like skill, and the next day takes it back. Origins closer than a horizon share their days, so only whole horizons
# count as independent.
WORTH = 0.03
STANDARD_ERRORS = 3.0
MOSTLY = 0.75
# Without a daily cycle (seasonal naive no better than persistence), a gain on prices is a trend; it has to have lasted
# for this many whole horizons before it is believed.
TREND_HORIZONS = 20
_NUM_ORIGINS = 12
_MIN_ORIGINS = 4


class Auto:
    """Persistence unless another model was clearly better on this series' own past.

    scores: one :class:`Score` per model, best first. chosen: the model whose quantiles are given. reason: why. For
    counts the central line and the distribution are chosen apart: the line by its error, which is that of the median,
    the distribution by quantile loss, since persistence has the harder line to beat and the poorer distribution.
    """

    name = "auto"

    def __init__(
        self, target: str | None = None, *, horizon: int | None = None, models: Sequence[str] | None = None
    ) -> None:
        self.target = target
        self._horizon = horizon
        self._models = tuple(models) if models is not None else None
        self.scores: list[Score] = []
        self.chosen = self.chosen_line = "persistence"
        self.reason = "not fitted yet"
        self._inner: Forecaster = self._make("persistence")
        self._line: Forecaster | None = None

    def fit(self, series: Any) -> Self:
        """Score the models on the last part of the series, then fit the chosen one to all of it."""
        history = prepare(series, self.target)
        names = self._models or (COUNT_MODELS if history.is_count else PRICE_MODELS)
        horizon = self._horizon or max(1, min(history.ticks_per_day() or 24, len(history) // 8))
        origins = origins_of(len(history), horizon, _NUM_ORIGINS)
        self.scores, self.chosen, self.chosen_line = [], "persistence", "persistence"
        if history.is_constant and not history.is_count:
            self.reason = "the series is constant"
        elif len(origins) < _MIN_ORIGINS or len(history) < 48:
            self.reason = f"{len(history)} points are too few to compare models"
        else:
            tests = [backtest(self._make(name), history, origins, horizon) for name in names]
            self.scores = scores_of(tests)
            independent = float(origins[-1] - origins[0]) / horizon + 1
            self.chosen_line, self.reason = choose(tests, independent)
            self.chosen = self.chosen_line
            if history.is_count:
                self.chosen, self.reason = choose_distribution(tests)
        self._inner = self._make(self.chosen).fit(history)
        self._line = None if self.chosen_line == self.chosen else self._make(self.chosen_line).fit(history)
        self._is_count = history.is_count
        return self

    def update(self, new_values: Any) -> Self:
        """Hand the values to the chosen models; no new choice."""
        self._inner.update(new_values)
        if self._line is not None:
            self._line.update(new_values)
        return self

    def predict(self, horizon: int, quantiles: Sequence[float] = LEVELS) -> Forecast:
        """The chosen model's forecast, under its name."""
        levels = tuple(float(level) for level in quantiles)
        found = self._inner.predict(horizon, (*levels, 0.5))
        centre = found.mean
        if getattr(self, "_is_count", False):
            centre = found.quantiles[-1] if self._line is None else self._line.predict(horizon, (0.5,)).quantiles[0]
        return replace(found, mean=centre, quantiles=found.quantiles[:-1], levels=levels)

    def _make(self, name: str) -> Forecaster:
        from forecasting.forecasters import make  # the registry names this module

        return make(name, self.target)


def choose(tests: Sequence[Backtest], num_independent: float) -> tuple[str, str]:
    """The model whose line to use, by error, and why. Tests share their origins; one of them is persistence."""
    base = next(test for test in tests if test.model == "persistence")
    best, why = base, "no other model was clearly better than persistence"
    cyclic = any(test.model == "seasonal_naive" and test.mae.mean() < base.mae.mean() for test in tests)
    if not (cyclic or num_independent >= TREND_HORIZONS):
        return base.model, f"no daily cycle, and a trend is not trusted before {TREND_HORIZONS} horizons have shown it"
    for test in tests:
        gain = base.mae - test.mae
        num = max(2.0, min(len(gain), num_independent))
        error = float(gain.std()) / np.sqrt(num - 1)
        if test.fallback or gain.mean() <= max(WORTH * float(base.mae.mean()), STANDARD_ERRORS * error):
            continue
        if (gain > 0).sum() >= MOSTLY * np.count_nonzero(gain) and test.mae.mean() < best.mae.mean():
            best, why = test, _gained("error", gain, base.mae)
    return best.model, why


def choose_distribution(tests: Sequence[Backtest]) -> tuple[str, str]:
    """The model whose quantiles to use: the lowest quantile loss. No margin is asked for, since no line is at stake."""
    base = next(test for test in tests if test.model == "persistence")
    best = min((test for test in tests if not test.fallback), key=lambda test: float(test.pinball.mean()), default=base)
    if best.pinball.mean() >= base.pinball.mean():
        return base.model, "no other model had better quantiles than persistence"
    return best.model, _gained("quantile loss", base.pinball - best.pinball, base.pinball)


def _gained(what: str, gain: np.ndarray, usual: np.ndarray) -> str:
    return f"{gain.mean() / usual.mean():.0%} less {what} than persistence over {len(gain)} rolling origins"
