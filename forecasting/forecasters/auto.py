"""Chooses a forecaster per series by its errors at rolling origins, and keeps the scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from forecasting.forecasters.base import LEVELS, Forecast, Forecaster
from forecasting.forecasters.prepare import prepare
from forecasting.forecasters.scores import Backtest, Score, backtest, origins_of, scores_of

PRICE_MODELS = ("persistence", "seasonal_naive", "ets", "arima")
COUNT_MODELS = ("persistence", "seasonal_naive", "hazard")
# A model replaces persistence only when it was better by this share, by this many standard errors of the paired
# differences, and at this share of the origins: on near random walks a trend of some days looks like skill, and the
# next day takes it back. Origins closer than a horizon share their days, so only whole horizons count as independent.
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

    scores: one :class:`Score` per model, best first. chosen: the name of the model that answers. For counts the model
    with the lowest pinball loss wins among those whose error is no worse than persistence's, and the central line is
    the median, since the error is measured on it (``hazard`` itself gives the expected count).
    """

    name = "auto"

    def __init__(
        self, target: str | None = None, *, horizon: int | None = None, models: Sequence[str] | None = None
    ) -> None:
        self.target = target
        self._horizon = horizon
        self._models = tuple(models) if models is not None else None
        self.scores: list[Score] = []
        self.chosen = "persistence"
        self.reason = "not fitted yet"
        self._inner: Forecaster = self._make("persistence")

    def fit(self, series: Any) -> Self:
        """Score the models on the last third of the series, then fit the chosen one to all of it."""
        history = prepare(series, self.target)
        self._is_count = history.is_count
        names = self._models or (COUNT_MODELS if history.is_count else PRICE_MODELS)
        horizon = self._horizon or max(1, min(history.ticks_per_day() or 24, len(history) // 8))
        origins = origins_of(len(history), horizon, _NUM_ORIGINS)
        self.scores, self.chosen = [], "persistence"
        if history.is_constant and not history.is_count:
            self.reason = "the series is constant"
        elif len(origins) < _MIN_ORIGINS or len(history) < 48:
            self.reason = f"{len(history)} points are too few to compare models"
        else:
            tests = [backtest(self._make(name), history, origins, horizon) for name in names]
            self.scores = scores_of(tests)
            independent = float(origins[-1] - origins[0]) / horizon + 1
            self.chosen, self.reason = choose(tests, independent, by_pinball=history.is_count)
        self._inner = self._make(self.chosen).fit(history)
        return self

    def update(self, new_values: Any) -> Self:
        """Hand the values to the chosen model; no new choice."""
        self._inner.update(new_values)
        return self

    def predict(self, horizon: int, quantiles: Sequence[float] = LEVELS) -> Forecast:
        """The chosen model's forecast, under its name."""
        levels = tuple(float(level) for level in quantiles)
        if not getattr(self, "_is_count", False):
            return self._inner.predict(horizon, levels)
        found = self._inner.predict(horizon, (*levels, 0.5))
        return Forecast(
            found.quantiles[-1], found.quantiles[:-1], levels, found.model, found.fallback, found.warnings,
            found.start_s, found.gap_s,
        )  # fmt: skip

    def _make(self, name: str) -> Forecaster:
        from forecasting.forecasters import make  # the registry names this module

        return make(name, self.target)


def choose(tests: Sequence[Backtest], num_independent: float, *, by_pinball: bool = False) -> tuple[str, str]:
    """The model to use and why. Tests share their origins; one of them is persistence."""
    base = next(test for test in tests if test.model == "persistence")
    best, why = base, "no other model was clearly better than persistence"
    cyclic = any(test.model == "seasonal_naive" and test.mae.mean() < base.mae.mean() for test in tests)
    if not (by_pinball or cyclic or num_independent >= TREND_HORIZONS):
        return base.model, f"no daily cycle, and a trend is not trusted before {TREND_HORIZONS} horizons have shown it"
    for test in tests:
        if test is base or test.fallback or (by_pinball and test.mae.mean() > base.mae.mean() * (1 + 1e-9)):
            continue
        loss, usual, held = (test.pinball, base.pinball, best.pinball) if by_pinball else (test.mae, base.mae, best.mae)
        gain = usual - loss
        num = max(2.0, min(len(gain), num_independent))
        error = float(gain.std()) / np.sqrt(num - 1)
        if gain.mean() <= max(WORTH * float(usual.mean()), STANDARD_ERRORS * error) or (gain > 0).mean() < MOSTLY:
            continue
        if loss.mean() < held.mean():
            unit = "quantile loss" if by_pinball else "error"
            best = test
            why = f"{gain.mean() / usual.mean():.0%} less {unit} than persistence over {len(gain)} rolling origins"
    return best.model, why
