"""A semi-Markov model of spot availability, learnt from a series' own past.

Availability is a level (how large a job could run on spot) in one of three classes: none, part, all. The chance that a
spell of none or all ends depends on how long it has lasted and, where the past shows it, on the time of day; where it
goes then is a smoothed distribution over levels. Counts are shrunk towards a spell-length law with falling hazard, so a
short past gives a usable model and a long one its own.

Legend: K past slots, L levels, X chain states (level, age of the spell), D parts of the day.
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


@dataclass(frozen=True)
class ChainSettings:
    """How strongly counts are shrunk. The defaults hold for any market; nothing here is fitted to a trace."""

    age_edges_s: tuple[float, ...] = AGE_EDGES_S
    day_parts: int = 4
    hazard_events: float = 1.0  # prior events per age bucket
    hazard_shape: float = 0.8  # prior hazard ~ age ** -shape
    day_events: float = 20.0  # prior events per part of the day
    day_gain: float = 3.0  # log-likelihood per factor that the time of day must bring to be used
    spell_s: float = 4 * 3600.0  # spell length assumed before any was seen
    level_events: float = 1.0  # prior moves per level
    half_life_s: float = math.inf  # how fast the past fades


@dataclass(frozen=True)
class Chain:
    """The fitted chain. State x has level index `level[x]`; `sizes[level]` GPUs can run."""

    sizes: IntArray  # [L] ascending, first 0
    level: IntArray  # [X]
    moves: np.ndarray[Any, np.dtype[np.float32]]  # [D, to X, from X], columns sum to 1
    first: IntArray  # [L] first state of a level
    ages: IntArray  # [A] age edges in slots
    slot_s: float

    def encode(self, availability: IntArray) -> int:
        """The chain state at the end of a past of availability [K]."""
        levels = level_of(self.sizes, availability)
        return self._state(int(levels[-1]), _age(_class_of(levels, len(self.sizes))))

    def _state(self, level: int, age: int) -> int:
        if 0 < level < len(self.sizes) - 1:
            return int(self.first[level])
        return int(self.first[level] + np.searchsorted(self.ages, age, side="right") - 1)

    def parts(self, clock_s: float, num_slots: int) -> IntArray:
        """The part of the day of the slots from `clock_s` on, shape [num_slots]."""
        return day_part(clock_s + np.arange(num_slots) * self.slot_s, self.moves.shape[0])


def level_of(sizes: IntArray, availability: IntArray) -> IntArray:
    """Index of the largest size that the availability can carry."""
    return np.searchsorted(sizes, availability, side="right") - 1


def day_part(clock_s: np.ndarray[Any, Any], num_parts: int) -> IntArray:
    """Part of the (UTC) day, 0..num_parts - 1."""
    return ((clock_s % DAY_S) * num_parts / DAY_S).astype(np.int64)


def fit_chain(availability: IntArray, sizes: IntArray, slot_s: float, clock_s: float, settings: ChainSettings) -> Chain:
    """Learn a chain from a past of availability [K] whose last slot begins at `clock_s`."""
    sizes = np.asarray(sizes, dtype=np.int64)
    levels = level_of(sizes, availability)
    classes = _class_of(levels, len(sizes))
    ages = np.unique(np.round(np.array(settings.age_edges_s) / slot_s).astype(np.int64))
    num_parts = settings.day_parts if len(levels) * slot_s >= 2 * DAY_S else 1
    times = clock_s - (len(levels) - 1 - np.arange(len(levels))) * slot_s
    hazard = _hazards(classes, ages, day_part(times, num_parts), num_parts, slot_s, settings)
    where = _destinations(levels, classes, len(sizes), settings)
    return _assemble(sizes, ages, hazard, where, slot_s)


def _class_of(levels: IntArray, num_levels: int) -> IntArray:
    return np.where(levels == 0, NONE, np.where(levels == num_levels - 1, ALL, PART))


@njit(cache=True, nogil=True)
def _ages(classes):  # type: ignore[no-untyped-def]
    """Slots since the class last changed, shape [K]."""
    age = np.zeros(classes.size, dtype=np.int64)
    for i in range(1, classes.size):
        age[i] = age[i - 1] + 1 if classes[i] == classes[i - 1] else 0
    return age


def _age(classes: IntArray) -> int:
    return int(_ages(classes)[-1])


def _hazards(
    classes: IntArray, ages: IntArray, part: IntArray, num_parts: int, slot_s: float, settings: ChainSettings
) -> FloatArray:
    """Chance per slot that a spell ends, shape [D, 3 classes, A ages]."""
    num_ages = len(ages)
    age = np.searchsorted(ages, _ages(classes), side="right") - 1
    ends = classes[1:] != classes[:-1]
    weight = 0.5 ** (np.arange(len(ends), 0, -1) * slot_s / settings.half_life_s)
    middle = np.sqrt(np.maximum(ages, 1.0) * np.append(ages[1:], max(ages[-1] * 2, 2)))
    law = middle**-settings.hazard_shape
    hazard = np.zeros((num_parts, 3, num_ages))
    for kind in (NONE, PART, ALL):
        mine = classes[:-1] == kind
        stays = np.bincount(age[:-1][mine], weights=weight[mine], minlength=num_ages)
        events = np.bincount(age[:-1][mine], weights=(weight * ends)[mine], minlength=num_ages)
        assumed = settings.spell_s / slot_s
        scale = (events.sum() + 0.5) / ((stays * law).sum() + 0.5 * assumed * law.mean())
        prior = np.clip(scale * law, 1e-6, 0.9)
        base = (events + settings.hazard_events) / (stays + settings.hazard_events / prior)
        hazard[:, kind] = np.clip(
            base * _day_factors(base[age[:-1]], ends, mine, part[:-1], settings, num_parts)[:, None], 1e-6, 0.95
        )
    return hazard


def _day_factors(
    expected: FloatArray, ends: FloatArray, mine: FloatArray, part: IntArray, settings: ChainSettings, num_parts: int
) -> FloatArray:
    """Factor on the hazard in each part of the day, [D]; all 1 unless the past shows clearly that the time matters."""
    factors, gain = np.ones(num_parts), 0.0
    if num_parts == 1:
        return factors
    for d in range(num_parts):
        here = mine & (part == d)
        awaited, seen = float(expected[here].sum()), float(ends[here].sum())
        factors[d] = (seen + settings.day_events) / (awaited + settings.day_events)
        gain += seen * np.log(factors[d]) - awaited * (factors[d] - 1)  # Poisson log-likelihood ratio
    return factors if gain > settings.day_gain * (num_parts - 1) else np.ones(num_parts)


def _destinations(levels: IntArray, classes: IntArray, num_levels: int, settings: ChainSettings) -> FloatArray:
    """Where a level goes: rows of none and all given that the spell ends, rows of part in one slot. Shape [L, L]."""
    counts = np.zeros((num_levels, num_levels))
    np.add.at(counts, (levels[:-1], levels[1:]), 1.0)
    ends = (0, num_levels - 1)
    pull = np.full(num_levels, 0.5 / num_levels)
    pull[list(ends)] += 0.25
    where = np.zeros((num_levels, num_levels))
    for level in range(num_levels):
        row, prior = counts[level].copy(), pull.copy()
        if level in ends:
            row[level] = prior[level] = 0.0
        else:
            # Levels in between are rare; what their neighbours did counts too, and standing still is likely.
            for other in (level - 1, level + 1):
                if other not in ends:
                    row += 0.5 * counts[other]
            prior[level] += 1.0
        prior *= settings.level_events * 2 / prior.sum()
        where[level] = (row + prior) / (row.sum() + prior.sum())
    return where


def _assemble(sizes: IntArray, ages: IntArray, hazard: FloatArray, where: FloatArray, slot_s: float) -> Chain:
    num_levels, num_ages, num_parts = len(sizes), len(ages), hazard.shape[0]
    spans = [num_ages if level in (0, num_levels - 1) else 1 for level in range(num_levels)]
    first = np.concatenate([[0], np.cumsum(spans)[:-1]]).astype(np.int64)
    num_states = int(sum(spans))
    moves = np.zeros((num_parts, num_states, num_states))  # [D, to, from]
    level_of_state = np.repeat(np.arange(num_levels), spans)
    for state in range(num_states):
        level = int(level_of_state[state])
        if spans[level] == 1:
            moves[:, first, state] = where[level]
            continue
        age = state - int(first[level])
        older = min(age + 1, num_ages - 1)
        ageing = 1.0 / (ages[age + 1] - ages[age]) if older > age else 0.0
        leave = hazard[:, NONE if level == 0 else ALL, age]
        moves[:, first, state] = leave[:, None] * where[level]
        moves[:, state, state] += (1 - leave) * (1 - ageing)
        moves[:, first[level] + older, state] += (1 - leave) * ageing
    return Chain(sizes, level_of_state, np.ascontiguousarray(moves, dtype=np.float32), first, ages, slot_s)
