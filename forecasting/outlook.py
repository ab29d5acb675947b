"""What a plan is likely to come to: cost and finish with bands, and the chance to make the deadline.

The programme's tables say what it would do in every state, its chain what the market may do. So the job is run along drawn
market paths, with an amount of work that differs from path to path as far as the pace is uncertain, and the spread of the
ends is the answer. The price of the slots ahead is one number, as in the programme itself.

Legend: P paths, T slots to the deadline, X market states, J modes of the job, W work cells, S job states.
"""

from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numba import njit

from forecasting import kernels
from forecasting.policies.program import choose
from forecasting.problem import FloatArray, IntArray, Job

_CHOOSE, _WANT, _GUARD, _STEP = choose, kernels.basic_action, kernels.guard, kernels.step
LOW, HIGH = 0.1, 0.9
LATE_SLOTS = 4  # how many times the deadline a late path is followed


@dataclass(frozen=True)
class Band:
    """An expected value (of drawn paths the mean, of fitted curves the median), and the range that holds 80 % of them; infinite
    where it is never reached."""

    expected: float
    low: float
    high: float

    def scaled(self, factor: float) -> "Band":
        return Band(self.expected * factor, self.low * factor, self.high * factor)


@dataclass(frozen=True)
class Outlook:
    """`cost` is money still to come, `finish` slots from now; `chance` the share of paths that end by the deadline."""

    cost: Band
    finish: Band
    chance: float


def draw_paths(moves: np.ndarray[Any, Any], start: int, num_slots: int, num_paths: int, seed: int = 0) -> IntArray:
    """Market states of the slots ahead, [P, T]; the first is `start`. moves [to, from], columns sum to 1."""
    cumulated = np.cumsum(moves, axis=0, dtype=np.float64)
    cumulated[-1] = 1.0
    draws = np.random.default_rng(seed).random((num_slots, num_paths))
    paths: IntArray = _walk(cumulated, draws, start)
    return paths


@njit(cache=True, nogil=True)
def _walk(cumulated, draws, start):  # type: ignore[no-untyped-def]
    """Paths [P, T] through the chain: the next state is the first whose cumulated chance [to, from] reaches the draw [T, P]."""
    num_slots, num_paths = draws.shape
    paths = np.empty((num_paths, num_slots), dtype=np.int64)
    for p in range(num_paths):
        now = start
        for t in range(num_slots):
            paths[p, t] = now
            to = 0
            while draws[t, p] > cumulated[to, now]:
                to += 1
            now = to
    return paths


def work_quantiles(work: float, spread: float, num_paths: int, seed: int = 0) -> FloatArray:
    """Amounts of work around `work` with a relative standard deviation of `spread`, one per path, evenly over the quantiles."""
    return work * np.maximum(0.2, 1 + spread * _normals(num_paths, seed))


@lru_cache(maxsize=64)
def _normals(num_paths: int, seed: int) -> FloatArray:
    """The quantiles of the normal distribution in the middle of each of so many equal parts, in a random order."""
    levels = (np.arange(num_paths) + 0.5) / num_paths
    normals: FloatArray = np.random.default_rng(seed).permutation([NormalDist().inv_cdf(level) for level in levels])
    normals.flags.writeable = False
    return normals


def summarize(costs: FloatArray, ends: FloatArray, deadline: float) -> Outlook:
    """From the ends of the paths, shape [P], to what is told."""
    return Outlook(_band(costs), _band(ends), float(np.mean(ends <= deadline + 1e-6)))


def _band(values: FloatArray) -> Band:
    ordered = np.sort(values).tolist()
    return Band(float(values.mean()), quantile_of(ordered, LOW), quantile_of(ordered, HIGH))


def quantile_of(ordered: list[float], level: float) -> float:
    """As `np.quantile` has it, bit by bit; of a few values in order in a hundredth of its time."""
    place = level * (len(ordered) - 1)
    before = int(place)
    low, high = ordered[before], ordered[min(before + 1, len(ordered) - 1)]
    share = place - before
    return low + (high - low) * share if share < 0.5 else high - (high - low) * (1 - share)


def steady_outlook(job: Job, work: FloatArray, spot: int, on_demand: int, price: float, deadline: float) -> Outlook:
    """The same for an allocation that stays as it is to the end: where there is no programme to follow."""
    speed = max(float(job.curve[min(spot + on_demand, job.n_max)]), 1e-9)
    ends = work / speed
    return summarize(ends * (spot * price + on_demand * job.on_demand_price), ends, deadline)


def spot_ends(gains: FloatArray, bills: FloatArray, works: FloatArray, deadline: float) -> Outlook:
    """Ends of paths whose work and money per slot are given, [P, T]; a path that never ends, ends after its last slot."""
    done = np.cumsum(gains, axis=1)
    paid = np.cumsum(bills, axis=1)
    over = done >= works[:, None] - 1e-9
    last = np.where(over.any(axis=1), over.argmax(axis=1), gains.shape[1] - 1)
    rows = np.arange(len(works))
    ends = np.where(over.any(axis=1), last + 1.0, gains.shape[1] + 1.0)
    return summarize(paid[rows, last], ends, deadline)


@njit(cache=True, nogil=True)
def roll(after, first, costs, now_costs, gain, nxt, wait, speed, top_mode, cell, slots_left, works, state, paths, top_cost, most):  # type: ignore[no-untyped-def]  # fmt: skip
    """Cost and end of every path, each [P]. costs [X, J] of a later slot, now_costs [J] of this one; after [T, W+1, S, X]."""
    num_paths = works.size
    total, ends = np.zeros(num_paths), np.zeros(num_paths)
    for p in range(num_paths):
        work, s, end = works[p], state, -1.0
        for t in range(slots_left):
            x = paths[p, t]
            here = now_costs if t == 0 else costs[x]
            mode, _ = _CHOOSE(
                after[first + t], here, x, gain, nxt, wait, speed, top_mode, cell, slots_left - 1 - t, work, s
            )
            done = gain[s, mode]
            if done >= work - 1e-9:
                share = work / done if done > 0 else 0.0
                total[p] += here[mode] * share
                end = t + share
                break
            total[p] += here[mode]
            work -= done
            s = nxt[s, mode]
        if end < 0:
            more = min(work / speed + wait[s], float(most))
            total[p] += more * top_cost
            end = slots_left + more
        ends[p] = end
    return total, ends


@njit(cache=True, nogil=True)
def roll_basic(p, policy, slot, works, held_spot, held_od, left, carried, now_price, price, most):  # type: ignore[no-untyped-def]
    """The same for a guarded policy that needs no model, from `slot` of its own count on. carried [P, T] spot to be had, at
    `now_price` in this slot and at `price` in the later ones."""
    num_paths, num_slots = carried.shape
    total, ends = np.zeros(num_paths), np.zeros(num_paths)
    for i in range(num_paths):
        work, spot, od, rest, end = works[i], held_spot, held_od, left, -1.0
        for t in range(num_slots):
            here, at = carried[i, t], now_price if t == 0 else price
            want, sure, rule = _WANT(p, policy, slot + t, work, spot, od, rest, here, at)
            want, sure, rule = _GUARD(p, slot + t, work, spot, od, rest, here, at, total[i], want, sure, rule)
            done, rest = _STEP(p, spot, od, rest, want, sure)
            spot, od = want, sure
            paid = spot * at + od * p.on_demand_price
            if done >= work - 1e-9:
                share = work / done if done > 0 else 0.0
                total[i] += paid * share
                end = t + share
                break
            total[i] += paid
            work -= done
        if end < 0:
            more = min(work / p.curve[p.top] + max(p.changeover, 0.0), float(most))
            total[i] += more * p.top * p.on_demand_price
            end = num_slots + more
        ends[i] = end
    return total, ends
