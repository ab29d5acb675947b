"""How likely a spell of availability ends in a slot, by its age, learnt in three steps from the general to the present.

A law for all markets (a hazard that falls with age) is scaled to the series and is the prior of the series' own counts;
these, over the whole past, are the prior of the counts of the last days, since markets have better and worse weeks. So a
short past leans on the law, a long one on itself, and a change of regime is followed within days.

Legend: K past slots, A ages, D parts of the day.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from forecasting.problem import FloatArray, IntArray

# A spell is likeliest to end in its first slots, so the first edges are close together.
AGE_EDGES_S = (0.0, 400.0, 1000.0, 2500.0, 7200.0, 21_600.0, 64_800.0)
DAY_S = 86_400.0
NONE, PART, ALL = 0, 1, 2
_LEAST, _MOST = 1e-6, 0.95

BoolArray = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class ChainSettings:
    """How strongly counts are shrunk. The defaults hold for any market; nothing here is fitted to a trace."""

    age_edges_s: tuple[float, ...] = AGE_EDGES_S
    day_parts: int = 4
    hazard_events: float = 1.0  # prior events per age, of the law against the whole past
    hazard_shape: float = 0.8  # the law: hazard ~ age ** -shape
    recent_events: float = 2.0  # prior events per age, of the whole past against the last days
    recent_half_life_s: float = 2 * DAY_S  # how fast the last days fade; inf: the whole past counts alike
    spread_ages: bool = False  # pass to the next age by chance: more spread than counted ages have
    day_events: float = 20.0  # prior events per part of the day
    day_gain: float = 3.0  # log-likelihood per factor that the time of day must bring to be used
    spell_s: float = 4 * 3600.0  # spell length assumed before any was seen
    level_events: float = 1.0  # prior moves per level


@dataclass(frozen=True)
class Spells:
    """The past as spells, one entry per slot but the last: its class, its age's index, whether its spell ended in it."""

    kind: IntArray  # [K-1]
    age: IntArray  # [K-1]
    ends: BoolArray  # [K-1]
    back_s: FloatArray  # [K-1] seconds before the present
    part: IntArray  # [K-1] part of the day

    @classmethod
    def of(cls, classes: IntArray, ages: IntArray, part: IntArray, slot_s: float) -> "Spells":
        """classes [K], ages: the lower edges in slots [A], part [K]."""
        age = np.searchsorted(ages, ages_of(classes), side="right") - 1
        back_s = np.asarray(np.arange(len(classes) - 1, 0, -1) * slot_s, dtype=float)
        return cls(classes[:-1], age[:-1], classes[1:] != classes[:-1], back_s, part[:-1])

    def counts(self, kind: int, num_ages: int, half_life_s: float = math.inf) -> tuple[FloatArray, FloatArray]:
        """Endings and slots at risk per age, [A] each, the older ones fading."""
        mine = self.kind == kind
        weight = 0.5 ** (self.back_s[mine] / half_life_s)
        risk = np.bincount(self.age[mine], weights=weight, minlength=num_ages)
        events = np.bincount(self.age[mine], weights=weight * self.ends[mine], minlength=num_ages)
        return events.astype(float), risk.astype(float)


def hazards(spells: Spells, ages: IntArray, num_parts: int, slot_s: float, settings: ChainSettings) -> FloatArray:
    """Chance per slot that a spell of none or all ends, shape [D, 3 classes, A]; that of part is not asked for."""
    found = np.zeros((num_parts, 3, len(ages)))
    for kind in (NONE, ALL):
        usual = _usual(spells, kind, ages, slot_s, settings)
        recent = _recent(spells, kind, usual, settings)
        factors = _day_factors(usual[spells.age], spells, spells.kind == kind, settings, num_parts)
        found[:, kind] = np.clip(recent * factors[:, None], _LEAST, _MOST)
    return found


def _usual(spells: Spells, kind: int, ages: IntArray, slot_s: float, settings: ChainSettings) -> FloatArray:
    """Hazard over the whole past, shrunk towards the law scaled to the number of endings, [A]."""
    events, risk = spells.counts(kind, len(ages))
    middle = np.sqrt(np.maximum(ages, 1.0) * np.append(ages[1:], max(ages[-1] * 2, 2)))
    law = middle**-settings.hazard_shape
    scale = (events.sum() + 0.5) / ((risk * law).sum() + 0.5 * settings.spell_s / slot_s * law.mean())
    return _shrunk(events, risk, scale * law, settings.hazard_events)


def _recent(spells: Spells, kind: int, usual: FloatArray, settings: ChainSettings) -> FloatArray:
    """Hazard of the last days: first the usual one scaled as a whole, then age by age, [A]."""
    if math.isinf(settings.recent_half_life_s):
        return usual
    events, risk = spells.counts(kind, len(usual), settings.recent_half_life_s)
    k = settings.recent_events
    return _shrunk(events, risk, usual * (events.sum() + k) / ((risk * usual).sum() + k), k)


def _shrunk(events: FloatArray, risk: FloatArray, prior: FloatArray, weight: float) -> FloatArray:
    """Posterior mean of a rate under a gamma prior that is worth `weight` events."""
    return np.asarray((events + weight) / (risk + weight / np.clip(prior, _LEAST, 0.9)))


def _day_factors(
    expected: FloatArray, spells: Spells, mine: BoolArray, settings: ChainSettings, num_parts: int
) -> FloatArray:
    """Factor on the hazard in each part of the day, [D]; all 1 unless the past shows clearly that the time matters."""
    factors, gain = np.ones(num_parts), 0.0
    if num_parts == 1:
        return factors
    for d in range(num_parts):
        here = mine & (spells.part == d)
        awaited, seen = float(expected[here].sum()), float(spells.ends[here].sum())
        factors[d] = (seen + settings.day_events) / (awaited + settings.day_events)
        gain += seen * np.log(factors[d]) - awaited * (factors[d] - 1)  # Poisson log-likelihood ratio
    return factors if gain > settings.day_gain * (num_parts - 1) else np.ones(num_parts)


@njit(cache=True, nogil=True)
def ages_of(classes):  # type: ignore[no-untyped-def]
    """Slots since the class last changed, shape [K]."""
    age = np.zeros(classes.size, dtype=np.int64)
    for i in range(1, classes.size):
        age[i] = age[i - 1] + 1 if classes[i] == classes[i - 1] else 0
    return age
