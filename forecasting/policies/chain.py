"""A semi-Markov model of spot availability, learnt from a series' own past.

Availability is a level (how large a job could run on spot) in one of three classes: none, part, all. The chance that a
spell of none or all ends depends on how long it has lasted and, where the past shows it, on the time of day
(`hazards`); where it goes then is a smoothed distribution over levels.

Legend: K past slots, L levels, X chain states (level, age of the spell), A ages, D parts of the day.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from forecasting.policies.hazards import ALL, DAY_S, NONE, PART, ChainSettings, Spells, ages_of, hazards
from forecasting.problem import FloatArray, IntArray


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
    spells = Spells.of(classes, ages, day_part(times, num_parts), slot_s)
    hazard = hazards(spells, ages, num_parts, slot_s, settings)
    where = _destinations(levels, classes, len(sizes), settings)
    return _assemble(sizes, ages, hazard, where, slot_s, spread=settings.spread_ages)


def _class_of(levels: IntArray, num_levels: int) -> IntArray:
    return np.where(levels == 0, NONE, np.where(levels == num_levels - 1, ALL, PART))


def _age(classes: IntArray) -> int:
    return int(ages_of(classes)[-1])


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


def _assemble(
    sizes: IntArray, ages: IntArray, hazard: FloatArray, where: FloatArray, slot_s: float, *, spread: bool
) -> Chain:
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
        leave = hazard[:, NONE if level == 0 else ALL, age]
        width = int(ages[older] - ages[age])
        ageing = (
            np.zeros(num_parts) if not width else np.full(num_parts, 1 / width) if spread else _ageing(leave, width)
        )
        moves[:, first, state] = leave[:, None] * where[level]
        moves[:, state, state] += (1 - leave) * (1 - ageing)
        moves[:, first[level] + older, state] += (1 - leave) * ageing
    return Chain(sizes, level_of_state, np.ascontiguousarray(moves, dtype=np.float32), first, ages, slot_s)


def _ageing(leave: FloatArray, width: int) -> FloatArray:
    """Chance that a spell that goes on passes to the next age, for a hazard `leave` [D] over an age of `width` slots.

    It is set so that as many spells outlive the age, and stay in it as long on average, as if slots were counted.
    """
    outlive = (1 - leave) ** width
    return np.minimum(1.0, outlive * leave / ((1 - outlive) * (1 - leave)))
