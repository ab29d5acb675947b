"""What a forecast is, what a forecaster does, and the guard that makes every one of them safe to call.

Shape letters: K ticks of history, H horizon, Q quantile levels.
"""

from __future__ import annotations

import logging
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from forecasting.forecasters.bands import Bands, clipped, prior_spread
from forecasting.forecasters.prepare import History, number, prepare, repaired

logger = logging.getLogger(__name__)

# 80 % and 50 % bands and the median.
LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True, eq=False)
class Forecast:
    """A forecast from one tick after the history to H ticks after it; all finite, none negative.

    mean: [H] the central line. quantiles: [Q,H], ascending in Q. fallback: why another model than the one asked for
    answered, or None. warnings: what was repaired or assumed on the way.
    """

    mean: np.ndarray
    quantiles: np.ndarray
    levels: tuple[float, ...]
    model: str
    fallback: str | None = None
    warnings: tuple[str, ...] = ()
    start_s: float = 0.0
    gap_s: float = 3600.0

    def level(self, level: float) -> np.ndarray:
        """The line [H] of one quantile level; KeyError when it was not asked for."""
        for index, known in enumerate(self.levels):
            if abs(known - level) < 1e-9:
                return np.asarray(self.quantiles[index])
        raise KeyError(f"level {level} was not asked for; there are {self.levels}")

    def band(self, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper line [H] of a central band, such as 0.8."""
        return self.level((1 - coverage) / 2), self.level((1 + coverage) / 2)


class Forecaster(Protocol):
    """The protocol every forecaster keeps. ``fit`` learns, ``update`` takes new values without learning again."""

    name: str

    def fit(self, series: Any) -> Self: ...

    def update(self, new_values: Any) -> Self: ...

    def predict(self, horizon: int, quantiles: Sequence[float] = LEVELS) -> Forecast: ...


class OutOfTime(Exception):
    """A fit ran past its time budget."""


class GuardedForecaster(ABC):
    """Common part: clean input, time budget, finite output, and persistence when the model cannot answer.

    A subclass gives ``_learn`` and ``_centre``, and its past errors through ``_errors``, from which the bands come.
    target: "price" or "availability", which column of a Series to forecast; by default the price when there is one.
    """

    name = "guarded"
    min_points = 1
    constant_is_certain = True

    def __init__(self, target: str | None = None, *, time_budget_s: float = 2.0) -> None:
        self.target = target
        self.time_budget_s = time_budget_s
        self.history = History(np.zeros(0), 3600.0, 0.0, target == "availability")
        self._refusal: str | None = "not fitted yet"
        self._said: tuple[str, ...] = ()

    def fit(self, series: Any) -> Self:
        """Learn from a series (see :mod:`forecasting.forecasters.prepare` for what it may be). Never raises for data."""
        self.history = prepare(series, self.target)
        self._said = self.history.warnings
        self._refusal = self._too_little()
        if self._refusal is None and not self._is_certain():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                self._refusal = self._guarded(self._learn)
            self._said += tuple(dict.fromkeys(_one_line(item.message) for item in caught))[:5]
        return self

    def update(self, new_values: Any) -> Self:
        """Add values that follow the history on its grid, oldest first; a single number is one value. No refit."""
        if hasattr(new_values, "tolist"):
            new_values = new_values.tolist()
        rows = list(new_values) if isinstance(new_values, (list, tuple)) else [new_values]
        last = float(self.history.values[-1]) if len(self.history) else None
        values, said = repaired([number(value) for value in rows], last)
        was_certain = self._is_certain()
        self.history = self.history.extended(values)
        self._said = tuple(dict.fromkeys(self._said + said))
        if self._too_little() is None and (was_certain or self._refusal) and not self._is_certain():
            self._refusal = "too little had varied when it was fitted; fit again to use the new values"
        elif self._refusal is None and not self._is_certain():
            self._refusal = self._guarded(self._absorb)
        return self

    def predict(self, horizon: int, quantiles: Sequence[float] = LEVELS) -> Forecast:
        """H steps after the last value. Raises ValueError only for a negative horizon or levels outside (0, 1)."""
        levels = tuple(float(level) for level in quantiles)
        if horizon < 0 or any(not 0 < level < 1 for level in levels):
            raise ValueError("the horizon must be 0 or more and every quantile level between 0 and 1")
        refusal = self._refusal
        if refusal is None and not self._is_certain():
            lines: list[tuple[np.ndarray, np.ndarray]] = []
            refusal = self._guarded(lambda: lines.append(self._project(horizon, levels)))
            if refusal is None:
                refusal = _unusable(*lines[0])
            if refusal is None:
                return self._forecast(*lines[0], levels, None)
        return self._forecast(*self._persist(horizon, levels), levels, refusal)

    # What a model gives.

    @abstractmethod
    def _learn(self) -> None:
        """Fit to ``self.history``; may raise, may warn."""

    @abstractmethod
    def _centre(self, horizon: int) -> np.ndarray:
        """The central line [H]."""

    @abstractmethod
    def _errors(self, ahead: int) -> np.ndarray:
        """Past errors (truth minus forecast) of forecasts ``ahead`` ticks ahead, oldest first, from rolling origins."""

    def _absorb(self) -> None:
        """Take in that ``self.history`` has grown; nothing to do for most models."""
        return

    def _anchors(self, horizon: int) -> np.ndarray:
        """The horizons at which the bands are measured; between them they are interpolated."""
        return np.unique(np.round(np.geomspace(1, max(1, horizon), 10)).astype(int))

    def _spacing(self) -> int:
        """Ticks from one origin of ``_errors`` to the next."""
        return 1

    def _project(self, horizon: int, levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        centre = self._centre(horizon)
        bands = Bands(self._errors, self._anchors(horizon), self.history, self._spacing())
        return clipped(self.history, centre, centre + bands.offsets(horizon, levels))

    # The guard.

    def _too_little(self) -> str | None:
        if len(self.history) >= self.min_points:
            return None
        return f"{len(self.history)} usable points, {self.name} needs {self.min_points}"

    def _is_certain(self) -> bool:
        return self.constant_is_certain and self.history.is_constant

    def _guarded(self, action: Any) -> str | None:
        """Run a step of the model; the reason when it failed."""
        try:
            action()
        except OutOfTime:
            return f"{self.name} took longer than its {self.time_budget_s:g} s"
        except Exception as error:
            # Numerical libraries raise many kinds of errors, and each must end in a forecast.
            logger.info("%s fell back to persistence: %s", self.name, error, exc_info=True)
            return f"{self.name} failed: {_one_line(error)}"
        return None

    def _persist(self, horizon: int, levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        """The last value held, with bands from past steps; 0 when nothing at all is known."""
        values = self.history.values
        centre = np.full(horizon, values[-1] if len(values) else 0.0)
        bands = Bands(lambda ahead: values[ahead:] - values[:-ahead], self._anchors(horizon), self.history)
        spread = prior_spread(self.history, horizon, levels)
        return clipped(self.history, centre, centre + bands.offsets(horizon, levels) + spread)

    def _forecast(
        self, mean: np.ndarray, quantiles: np.ndarray, levels: tuple[float, ...], fallback: str | None
    ) -> Forecast:
        said, model = self._said, self.name
        if fallback is not None:
            model = "persistence"
            if not len(self.history):
                fallback, said = f"nothing is known: {fallback}", (*said, "a forecast of 0 without any data")
        return Forecast(mean, quantiles, levels, model, fallback, said, self.history.end_s, self.history.gap_s)


class Deadline:
    """Raises OutOfTime when called after the budget; handed to optimisers as their callback."""

    def __init__(self, budget_s: float) -> None:
        self._until = time.monotonic() + budget_s

    def __call__(self, *_: Any, **__: Any) -> None:
        if time.monotonic() > self._until:
            raise OutOfTime

    @property
    def left_s(self) -> float:
        return self._until - time.monotonic()


def _unusable(mean: np.ndarray, quantiles: np.ndarray) -> str | None:
    if np.isfinite(mean).all() and np.isfinite(quantiles).all():
        return None
    return "the model's forecast was not finite"


def _one_line(message: object) -> str:
    return " ".join(str(message).split())[:160] or type(message).__name__
