"""Semi-Markov availability: how likely a level ends depends on which it is, how long it has lasted, and the hour.

Shape letters: K ticks, H horizon, C levels, B age bins, O origins.

Spot capacity has long up and down spells whose end is likelier early than late, so a Markov chain on the level alone
forgets too fast. Here a state is (level, age bin); ages are binned 1, 2, 3-4, 5-8, ... ticks. The chance that a spell
ends in a tick is estimated per bin by occurrences over exposure, shrunk towards the level's own rate (so that rare bins
do not decide), and multiplied by the hour of day where a chi-square test finds a daily cycle. A forecast runs the chain
forward from the present level and age; its distribution gives the mean and the quantiles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from forecasting.forecasters.base import GuardedForecaster
from forecasting.forecasters.calibration import stretch_of, widened
from forecasting.forecasters.prepare import History

MAX_LEVELS = 24
_AGE_EDGES = np.array([1, 2, 3, 5, 9, 17, 33, 65, 129, 257, 513, 1025])
# So many pseudo-endings pull a bin's rate towards the rate of its level, and a level's towards that of all levels.
_PULL = 2.0
# Spells fade: the rate of an age bin, before its own endings speak, is half of the younger bin's (rate ~ 1 / age).
_FADE = 0.5
_SIGNIFICANT = 0.01
_HOURS = 24


@dataclass(frozen=True)
class Spells:
    """Estimates. end_rate: [C,B] chance per tick. goes_to: [C,C] where an ending leads. by_hour: [24] factors."""

    levels: np.ndarray
    end_rate: np.ndarray
    goes_to: np.ndarray
    by_hour: np.ndarray


class Hazard(GuardedForecaster):
    """Forecasts counts of GPUs; for prices use another forecaster."""

    name = "hazard"
    min_points = 8
    constant_is_certain = False

    def __init__(self, target: str | None = "availability", *, time_budget_s: float = 2.0) -> None:
        super().__init__(target or "availability", time_budget_s=time_budget_s)

    def _learn(self) -> None:
        self._spells = learn(self.history)
        self._stretch = stretch_of(self.history, _cumulative)

    def _absorb(self) -> None:
        # Counting is no optimisation: two milliseconds for a month of ticks, and the present spell's length matters.
        self._spells = learn(self.history)

    def _centre(self, horizon: int) -> np.ndarray:
        return np.asarray(self.probabilities(horizon) @ self._spells.levels)

    def _errors(self, ahead: int) -> np.ndarray:
        return np.zeros(0)

    def _project(self, horizon: int, levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
        chances = self.probabilities(horizon)
        below = _summed(chances)
        reading = widened(levels, horizon, len(self.history), self._stretch)
        lines = [self._spells.levels[(below >= row[:, None] - 1e-9).argmax(axis=1)] for row in reading]
        return chances @ self._spells.levels, np.array(lines).reshape(len(levels), horizon)

    def probabilities(self, horizon: int) -> np.ndarray:
        """[H,C] chance of each level of ``levels`` at each tick ahead."""
        return forward(self._spells, self.history, horizon)

    @property
    def levels(self) -> np.ndarray:
        """[C] the levels that have been seen, ascending."""
        return self._spells.levels

    def survival(self, horizon: int) -> np.ndarray:
        """[H] chance that the present level (or a higher one) has been held without a break so far."""
        return forward(self._spells, self.history, horizon, floor=float(self.history.values[-1])).sum(axis=1)


def learn(history: History) -> Spells:
    """Estimate the spells of a history."""
    levels, state = _levels(history.values)
    age = ages(state)
    ends = np.append(state[1:] != state[:-1], False)
    exposed = np.arange(len(state)) < len(state) - 1
    num_levels, bins = len(levels), len(_AGE_EDGES)
    cell = state * bins + _bin(age)
    at_risk = np.bincount(cell[exposed], minlength=num_levels * bins).reshape(num_levels, bins).astype(float)
    ended = np.bincount(cell[ends], minlength=num_levels * bins).reshape(num_levels, bins).astype(float)
    overall = (ended.sum() + 0.5) / (at_risk.sum() + 1.0)
    own = (ended.sum(axis=1) + _PULL) / (at_risk.sum(axis=1) + _PULL / overall)
    rate = np.empty_like(ended)
    usual = own
    for bin_ in range(bins):
        rate[:, bin_] = (ended[:, bin_] + _PULL) / (at_risk[:, bin_] + _PULL / usual)
        usual = rate[:, bin_] * _FADE
    moves = np.zeros((num_levels, num_levels))
    np.add.at(moves, (state[:-1][ends[:-1]], state[1:][ends[:-1]]), 1.0)
    return Spells(levels, np.clip(rate, 0.0, 1.0), _shares(moves), _by_hour(history, rate[state, _bin(age)], ends))


def forward(spells: Spells, history: History, horizon: int, floor: float | None = None) -> np.ndarray:
    """[H,C] the chain run forward; with ``floor``, what falls below that level is lost instead (survival)."""
    levels, rate = spells.levels, spells.end_rate
    chance = np.zeros(rate.shape)
    state = np.abs(levels[None, :] - history.values[-1025:, None]).argmin(axis=1)
    chance[state[-1], _bin(ages(state)[-1:])[0]] = 1.0
    widths = np.append(np.diff(_AGE_EDGES), np.inf)
    older = 1.0 / widths
    goes_to = spells.goes_to if floor is None else spells.goes_to * (levels >= floor)[None, :]
    hours = ((history.end_s + np.arange(horizon) * history.gap_s) // 3600).astype(np.int64) % _HOURS
    out = np.empty((horizon, len(levels)))
    for step in range(horizon):
        ending = chance * np.minimum(1.0, rate * spells.by_hour[hours[step]])
        staying = chance - ending
        ageing = staying * older
        chance = staying - ageing
        chance[:, 1:] += ageing[:, :-1]
        chance[:, 0] += ending.sum(axis=1) @ goes_to
        out[step] = chance.sum(axis=1)
    return out


def _summed(chances: np.ndarray) -> np.ndarray:
    """[H,C] chance of each level or one below it."""
    below = np.cumsum(chances, axis=1)
    below[:, -1] = 1.0
    return below


def _cumulative(past: History, horizon: int) -> tuple[np.ndarray, np.ndarray]:
    """The levels [C] of a past and the chance of each or one below it [H,C]; for the calibration."""
    spells = learn(past)
    return spells.levels, _summed(forward(spells, past, horizon))


def ages(state: np.ndarray) -> np.ndarray:
    """[K] for how many ticks the present level has lasted, counting this one."""
    ticks = np.arange(len(state))
    began = np.append(True, state[1:] != state[:-1])
    return np.asarray(ticks - np.maximum.accumulate(np.where(began, ticks, 0)) + 1)


def _bin(age: np.ndarray) -> np.ndarray:
    return np.searchsorted(_AGE_EDGES, age, side="right") - 1


def _levels(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The levels [C] and each tick's level number [K]; many distinct counts are merged into MAX_LEVELS."""
    # Nothing at all is always possible, also where it was never seen.
    levels = np.unique(np.append(values, 0.0))
    if len(levels) <= MAX_LEVELS:
        return levels, np.searchsorted(levels, values)
    edges = np.unique(np.quantile(values, np.linspace(0, 1, MAX_LEVELS), method="inverted_cdf"))
    return edges, np.abs(edges[None, :] - values[:, None]).argmin(axis=1)


def _shares(moves: np.ndarray) -> np.ndarray:
    """[C,C] where an ending leads: the level's own moves, pulled towards those of all levels; never to itself."""
    num_levels = len(moves)
    if num_levels == 1:
        return np.ones((1, 1))
    pooled = np.tile(moves.sum(axis=0) + 1.0 / num_levels, (num_levels, 1))
    np.fill_diagonal(pooled, 0.0)
    pooled /= pooled.sum(axis=1, keepdims=True)
    return np.asarray((moves + _PULL * pooled) / (moves.sum(axis=1, keepdims=True) + _PULL))


def _by_hour(history: History, rate: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """[24] factors on the ending rate by hour of day (UTC); all one unless a chi-square test finds a cycle."""
    hour = ((history.start_s + np.arange(len(ends)) * history.gap_s) // 3600).astype(np.int64) % _HOURS
    expected = np.bincount(hour, rate, minlength=_HOURS)
    seen = np.bincount(hour, ends, minlength=_HOURS)
    if len(ends) * history.gap_s < 5 * 86_400 or expected.min() < 1.0 or not seen.sum():
        return np.ones(_HOURS)
    expected *= seen.sum() / expected.sum()
    if stats.chi2.sf(float(((seen - expected) ** 2 / expected).sum()), _HOURS - 1) > _SIGNIFICANT:
        return np.ones(_HOURS)
    smooth = np.array([0.25, 0.5, 0.25])
    around = np.arange(_HOURS)[:, None] + np.array([-1, 0, 1])[None, :]
    seen, expected = seen[around % _HOURS] @ smooth, expected[around % _HOURS] @ smooth
    return np.asarray((seen + 5.0) / (expected + 5.0))
