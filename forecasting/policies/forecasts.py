"""What AHAP believes of the next slots: a cheap built-in forecast, and ways to put in another or to spoil it.

A forecaster here is a function (availability [K], price [K], horizon) -> (availability [H], price [H]) of the slots after
the last one given; any model with `fit` and `predict` fits in through `from_models`.
"""

import zlib
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from forecasting.problem import FloatArray, IntArray, Offer

Forecaster = Callable[[IntArray, FloatArray, int], tuple[FloatArray, FloatArray]]


def markov_forecast(availability: IntArray, price: FloatArray, horizon: int) -> tuple[FloatArray, FloatArray]:
    """Expected availability under a two-state chain (something there or not), and the price that is in force."""
    up = availability > 0
    level = float(availability[up].mean()) if up.any() else float(availability.max(initial=0))
    now = float(availability[-1])
    leave_up = _rate(up[:-1] & ~up[1:], up[:-1])
    leave_down = _rate(~up[:-1] & up[1:], ~up[:-1])
    steady = leave_down / (leave_up + leave_down)
    decay = (1 - leave_up - leave_down) ** np.arange(1, horizon + 1)
    chance = steady + (float(up[-1]) - steady) * decay
    # While it lasts, today's level is the best guess of the level; what comes back later is an average one.
    held = now if up[-1] else level
    mixed = held * np.abs(decay) + level * (1 - np.abs(decay))
    return np.maximum(0.0, chance * mixed), np.full(horizon, float(price[-1]))


def _rate(events: np.ndarray[Any, Any], exposed: np.ndarray[Any, Any]) -> float:
    return float(np.clip((events.sum() + 1.0) / (exposed.sum() + 20.0), 1e-3, 0.9))


def persistence_forecast(availability: IntArray, price: FloatArray, horizon: int) -> tuple[FloatArray, FloatArray]:
    """Everything stays as it is."""
    return np.full(horizon, float(availability[-1])), np.full(horizon, float(price[-1]))


def with_ahead(offer: Offer, inner: Forecaster) -> Forecaster:
    """What is forecast at the present of `offer` where it comes with a forecast, and as far as that goes; else `inner`.

    A plan of an earlier slot is made of what was seen since and the same forecast, so that plans that are averaged believe
    the same. What is asked of an earlier slot for one slot only tests the forecaster: that is `inner`, without a look ahead.
    """

    def expected(availability: IntArray, price: FloatArray, horizon: int) -> tuple[FloatArray, FloatArray]:
        there, at = inner(availability, price, horizon)
        back = len(offer.availability) - len(availability)
        if back and horizon == 1:
            return there, at
        ahead = offer.ahead
        return _begun_by(offer.availability, back, ahead.availability, there), _begun_by(
            offer.price, back, ahead.price, at
        )

    return expected


def _begun_by(past: IntArray | FloatArray, back: int, ahead: FloatArray | None, line: FloatArray) -> FloatArray:
    """`line` with the last `back` slots of the past and what is forecast after them in place of its beginning."""
    if ahead is None:
        return line
    known = np.concatenate([past[len(past) - back :], ahead])[: len(line)]
    return np.concatenate([known, line[len(known) :]])


def noisy(inner: Forecaster, share: float, seed: int = 0) -> Forecaster:
    """A forecast degraded by `share` of its own size: for the study of how much a policy depends on it.

    The noise depends on the past it is given and on the seed only, so a decision can be computed again.
    """

    def spoiled(availability: IntArray, price: FloatArray, horizon: int) -> tuple[FloatArray, FloatArray]:
        there, at = inner(availability, price, horizon)
        mark = zlib.crc32(np.ascontiguousarray(availability[-512:]).tobytes()) + len(availability)
        rng = np.random.default_rng([seed, mark])
        top = max(1.0, float(availability.max(initial=1)))
        there = np.clip(there + share * top * rng.uniform(-1, 1, horizon), 0, top)
        return there, np.maximum(0.0, at * (1 + share * rng.uniform(-1, 1, horizon)))

    return spoiled


class Remembered:
    """The same forecasts, each made once: the members of a pool, and jobs that follow one, ask for the same ones over and over.

    Threads may share it. A forecast is given to all who ask for it, so nobody may write into it.
    """

    def __init__(self, inner: Forecaster, size: int = 2048) -> None:
        self.inner, self.size = inner, size
        self._known: OrderedDict[tuple[int, ...], tuple[FloatArray, FloatArray]] = OrderedDict()

    def __call__(self, availability: IntArray, price: FloatArray, horizon: int) -> tuple[FloatArray, FloatArray]:
        marks = (zlib.crc32(np.ascontiguousarray(past).tobytes()) for past in (availability, price))
        key = (len(availability), horizon, *marks)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.inner(availability, price, horizon)
            for part in found:
                part.flags.writeable = False
            if len(self._known) > self.size:
                self._known.popitem(last=False)
        return found


def from_models(
    make_availability: Callable[[], Any],
    make_price: Callable[[], Any],
    series_of: Callable[..., Any],
    refit_every: int = 48,
) -> Forecaster:
    """Wrap forecasting models (`fit(series)`, `predict(horizon, quantiles).mean`), refitted every so many slots.

    The fit that answers depends on the past alone, so a decision can be computed again.
    """
    fitted: dict[tuple[int, ...], tuple[Any, Any]] = {}

    def predicted(availability: IntArray, price: FloatArray, horizon: int) -> tuple[FloatArray, FloatArray]:
        stop = max(1, len(availability) - len(availability) % refit_every)
        marks = (zlib.crc32(np.ascontiguousarray(past[:stop]).tobytes()) for past in (availability, price))
        key = (stop, *marks)  # another market of the same length is another past
        if key not in fitted:
            fitted.clear()
            fitted[key] = (
                make_availability().fit(series_of(availability[:stop])),
                make_price().fit(series_of(price[:stop])),
            )
        skipped = len(availability) - stop
        there = fitted[key][0].predict(horizon + skipped, ()).mean[skipped:]
        at = fitted[key][1].predict(horizon + skipped, ()).mean[skipped:]
        return np.maximum(0.0, there), np.maximum(0.0, at)

    return predicted
