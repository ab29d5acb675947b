"""How much wider than it thinks a distribution over levels has to be, measured on the series' own past.

A chain fitted to K ticks is too sure of itself h ticks ahead: it knows only about K / h independent stretches of that
length, and markets stay better or worse for longer than any spell of the chain. As in `bands`, level p is therefore read at
1/2 + (p - 1/2)(1 + c h / K). The stretch c is at least that of the bands; more if at rolling origins of the own past, each
forecast from what lay before it, the 80 % band had covered less than 80 % (conformal calibration).

Shape letters: K ticks, H horizon, C levels, G stretches tried, Q quantile levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from forecasting.forecasters.prepare import History

_STRETCHES = (1.5, 2.5, 4.0, 6.0, 9.0)
_NUM_ORIGINS = 8
_LEAST_POINTS = 16
_MAX_TICKS = 720  # of a forecast that is checked: what is learnt there is a share of the horizon, not its length
_COVERAGE = 0.8
_ENOUGH = 0.79  # measured at eight origins, a coverage is known to two or three percent
_MASS = 1e-12

# (past, horizon) -> levels [C] ascending, chance of a level or one below it at each tick ahead [H,C].
Distribution = Callable[[History, int], tuple[np.ndarray, np.ndarray]]


def stretch_of(history: History, distribution: Distribution) -> float:
    """The least stretch c with which the 80 % band would have covered the own past, else the one that covered most of it."""
    horizon = max(1, min(history.ticks_per_day() or 24, len(history) // 8, _MAX_TICKS))
    first = max(_LEAST_POINTS, int(0.4 * len(history)))
    if first > len(history) - horizon:
        return _STRETCHES[0]
    origins = np.unique(np.linspace(first, len(history) - horizon, _NUM_ORIGINS).astype(int))
    covered = np.mean([_covered(history, int(origin), horizon, distribution) for origin in origins], axis=0)
    return _STRETCHES[int(np.argmax(np.minimum(covered, _ENOUGH)))]


def widened(levels: Sequence[float], horizon: int, num_points: int, stretch: float) -> np.ndarray:
    """[Q,H] where to read each quantile level in the distribution of each tick ahead."""
    centred = np.asarray(levels, dtype=np.float64)[:, None] - 0.5
    return np.clip(0.5 + centred * _factors(horizon, num_points, stretch), 1e-9, 1 - 1e-9)


def _factors(horizon: int, num_points: int, stretch: float) -> np.ndarray:
    return np.asarray(1 + stretch * np.arange(1, horizon + 1) / max(1, num_points))


def _covered(history: History, origin: int, horizon: int, distribution: Distribution) -> np.ndarray:
    """[G] fair coverage of the 80 % band of a forecast made at `origin`."""
    levels, below = distribution(history.head(origin), horizon)
    truth = history.values[origin : origin + horizon]
    place = np.abs(levels[None, :] - truth[:, None]).argmin(axis=1)
    upto = np.take_along_axis(below, place[:, None], axis=1)[:, 0]
    under = np.where(place > 0, np.take_along_axis(below, np.maximum(place - 1, 0)[:, None], axis=1)[:, 0], 0.0)
    return np.array([_inside(under, upto, _factors(horizon, origin, c)).mean() for c in _STRETCHES])


def _inside(under: np.ndarray, upto: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """[H] share of each value's probability mass that lies in the widened band; as `scores.fair_coverage` counts it."""
    low, high = (1 - _COVERAGE) / 2, (1 + _COVERAGE) / 2
    under, upto = (_narrowed(chance, factor) for chance in (under, upto))
    mass = upto - under
    share = np.clip(np.minimum(upto, high) - np.maximum(under, low), 0, None) / np.maximum(mass, _MASS)
    return np.where(mass > _MASS, share, (upto >= low) & (upto <= high))


def _narrowed(chance: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """[H] the level that is read at `chance`: the inverse of the widening; 0 and 1 stay."""
    inner = np.clip(0.5 + (chance - 0.5) / factor, 0, 1)
    return np.where(chance <= 0, 0.0, np.where(chance >= 1 - _MASS, 1.0, inner))
