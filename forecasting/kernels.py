"""The rules of one slot as compiled scalar functions: step, safety, and the policies that need no model.

`decide()` of a policy and the batch replay of thousands of windows call the same functions, so there is one copy of
each rule. A job is passed as a `Pack`; sizes of spot and on-demand as two integers; money per GPU-slot.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from forecasting.problem import FloatArray, Job

# Rules that a basic policy can report; the words are in policies/words.py.
IDLE, SPOT, ON_DEMAND, CATCH_UP, KEEP, GUARD, MIX, BUDGET, AFFORD = range(9)
ON_DEMAND_ONLY, SPOT_FIRST, UNIFORM_PROGRESS = range(3)


class Pack(NamedTuple):
    """A job as plain numbers and arrays, for compiled code."""

    work: float
    deadline: int
    hard: int
    value: float
    on_demand_price: float
    sizes: np.ndarray[Any, np.dtype[np.int64]]  # ascending, without 0
    curve: FloatArray  # H, [N+1]
    top: int
    mu_grow: float
    mu_shrink: float
    changeover: float  # in slots; < 0 in the mu form
    budget: float
    approval: int
    spot_allowed: bool
    span: float  # (gamma - 1) * d, slots over which the value falls to 0


def pack(job: Job) -> Pack:
    """The compiled form of a job."""
    return Pack(
        float(job.work),
        job.deadline_slots,
        job.hard_slots,
        float(job.value),
        float(job.on_demand_price),
        np.array(job.sizes, dtype=np.int64),
        job.curve,
        job.top_size,
        float(job.mu_grow),
        float(job.mu_shrink),
        -1.0 if job.changeover_s is None else job.changeover_s / job.slot_s,
        np.inf if job.budget is None else float(job.budget),
        job.approval_slots,
        job.spot_allowed,
        (job.gamma - 1) * job.deadline_slots,
    )


@njit(cache=True, nogil=True)
def worth_at(p, finish):  # type: ignore[no-untyped-def]
    """V(finish): v until the soft deadline, falling to 0 at the hard one."""
    late = finish - p.deadline
    if late <= 0:
        return p.value
    return p.value * max(0.0, 1.0 - late / p.span) if p.span > 0 else 0.0


@njit(cache=True, nogil=True)
def step(p, held_spot, held_od, left, spot, od):  # type: ignore[no-untyped-def]
    """Work gained in one slot, and changeover slots still to go at its end, when (spot, od) follows (held_spot, held_od)."""
    size, before = spot + od, held_spot + held_od
    if size == 0:
        return 0.0, 0.0
    if p.changeover < 0:
        share = p.mu_grow if size > before else (p.mu_shrink if size < before else 1.0)
        return p.curve[size] * share, 0.0
    if spot > held_spot or od > held_od or before == 0 or (left > 0 and size < before):
        left = p.changeover
    return p.curve[size] * max(0.0, 1.0 - left), max(0.0, left - 1.0)


@njit(cache=True, nogil=True)
def slots_needed(p, work, held_spot, held_od, left):  # type: ignore[no-untyped-def]
    """Slots that on-demand at full size needs from here if no spot is there any more."""
    if work <= 1e-9:
        return 0
    speed = p.curve[p.top]
    if p.changeover < 0:
        first = speed * (
            p.mu_grow if held_spot + held_od < p.top else (p.mu_shrink if held_spot + held_od > p.top else 1.0)
        )
        if work <= first + 1e-9:
            return 1
        if first <= 0 and speed <= 0:
            return 1 << 30
        return 1 + int(np.ceil((work - first) / speed - 1e-9))
    wait = left if held_od == p.top and held_spot == 0 else p.changeover
    return int(np.ceil(work / speed + wait - 1e-9))


@njit(cache=True, nogil=True)
def is_safe(p, t, work, held_spot, held_od, left, spot, od):  # type: ignore[no-untyped-def]
    """Whether (spot, od) in slot t still leaves on-demand enough time, should all spot be lost right after it."""
    gain, rest = step(p, held_spot, held_od, left, spot, od)
    wait = p.approval if od == 0 else 0
    need = slots_needed(p, work - gain, spot, od, rest)
    if need == 0:
        return t + 1 <= p.deadline
    return t + 1 + wait + need <= p.deadline


@njit(cache=True, nogil=True)
def floor_size(p, n):  # type: ignore[no-untyped-def]
    """The largest allowed size that n GPUs can form, 0 if none."""
    found = 0
    for size in p.sizes:
        if size <= n:
            found = size
    return found


@njit(cache=True, nogil=True)
def ceil_size(p, n):  # type: ignore[no-untyped-def]
    """The smallest allowed size of at least n GPUs, the largest if there is none."""
    for size in p.sizes:
        if size >= n:
            return size
    return p.sizes[-1]


@njit(cache=True, nogil=True)
def usable_spot(p, available, price):  # type: ignore[no-untyped-def]
    """Spot GPUs worth holding now: none where spot is forbidden or dearer than on-demand."""
    return available if p.spot_allowed and price < p.on_demand_price else 0


@njit(cache=True, nogil=True)
def size_for(p, t, work, held_spot, held_od, left, at_least, target):  # type: ignore[no-untyped-def]
    """The smallest size of at least `at_least` whose progress in this slot reaches `target`; the largest if none does."""
    for size in p.sizes:
        if size >= at_least:
            if p.changeover < 0:
                gain = step(p, held_spot, held_od, left, 0, size)[0]
            else:
                # Over one slot a changeover eats all progress; the line is met by speed, and hysteresis pays the start.
                gain = p.curve[size]
            if gain >= target - 1e-9:
                return size
    return p.sizes[-1]


@njit(cache=True, nogil=True)
def basic_action(p, policy, t, work, held_spot, held_od, left, available, price):  # type: ignore[no-untyped-def]
    """What a policy without a model wants: (spot, on-demand, rule)."""
    spot_here = usable_spot(p, available, price)
    if policy == ON_DEMAND_ONLY:
        return 0, p.top, ON_DEMAND
    ride = floor_size(p, min(spot_here, p.sizes[-1]))
    if policy == SPOT_FIRST:
        return (ride, 0, SPOT) if ride > 0 else (0, 0, IDLE)
    return uniform_progress(p, t, work, held_spot, held_od, left, spot_here, ride)


@njit(cache=True, nogil=True)
def uniform_progress(p, t, work, held_spot, held_od, left, spot_here, ride):  # type: ignore[no-untyped-def]
    """Uniform Progress: never fall below the straight line from (0, 0) to (deadline, work), and use spot when it is there.

    Thrifty: a finished job holds nothing (the loop ends). Exploitation: spot is kept until it is lost. Hysteresis: from
    on-demand back to spot only when progress is ahead of where the line will be after two changeovers.
    """
    done, rate = p.work - work, p.work / p.deadline
    pause = max(p.changeover, 0.0)
    if p.changeover >= 0 and held_od > 0 and not (held_spot > 0 and ride >= held_spot + held_od):
        if ride == 0 or done < rate * (t + 2 * pause) - 1e-9:
            keep = ceil_size(p, held_spot + held_od)
            spot = min(held_spot, spot_here, keep)
            return spot, keep - spot, KEEP
    behind = rate * (t + 1) - done
    if ride > 0 and (
        p.sizes.size == 1
        or p.curve[ride] * (p.mu_grow if p.changeover < 0 and ride > held_spot + held_od else 1.0) >= behind - 1e-9
    ):
        return ride, 0, SPOT
    late = rate * t - done if p.sizes.size == 1 else behind
    if late <= 1e-9:
        return (ride, 0, SPOT) if ride > 0 else (0, 0, IDLE)
    size = size_for(p, t, work, held_spot, held_od, left, max(ride, p.sizes[0]), behind)
    spot = min(spot_here, size)
    return spot, size - spot, CATCH_UP


@njit(cache=True, nogil=True)
def guard(p, t, work, held_spot, held_od, left, available, price, spent, spot, od, rule):  # type: ignore[no-untyped-def]
    """The policy's wish if it is safe, else the cheapest way that makes the deadline, within the budget: (spot, od, rule)."""
    spot_here = usable_spot(p, available, price)
    if not is_safe(p, t, work, held_spot, held_od, left, spot, od):
        spot, od, rule = _last_moment(p, t, work, held_spot, held_od, left, spot_here, spot, od, rule)
    cost = spot * price + od * p.on_demand_price
    if spent + cost > p.budget + 1e-9:
        return _within_budget(p, price, p.budget - spent, spot_here)
    return spot, od, rule


@njit(cache=True, nogil=True)
def _last_moment(p, t, work, held_spot, held_od, left, spot_here, spot, od, rule):  # type: ignore[no-untyped-def]
    """Past the last safe moment: full size, with as much spot as risks nothing."""
    if t >= p.deadline and not _worth_finishing(p, t, work, held_spot, held_od, left):
        return spot, od, rule
    mix = min(spot_here, p.top)
    if p.changeover >= 0:
        mix = min(mix, held_spot)
    if mix > 0 and is_safe(p, t, work, held_spot, held_od, left, mix, p.top - mix):
        return mix, p.top - mix, MIX
    if p.changeover < 0 and mix > 0:
        return mix, p.top - mix, GUARD  # in the mu form swapping spot for on-demand at equal size costs no progress
    return 0, p.top, GUARD


@njit(cache=True, nogil=True)
def _worth_finishing(p, t, work, held_spot, held_od, left):  # type: ignore[no-untyped-def]
    """Past the soft deadline: whether running at full size on demand to the end still pays."""
    end = t + slots_needed(p, work, held_spot, held_od, left)
    return end <= p.hard and worth_at(p, end) > (end - t) * p.top * p.on_demand_price


@njit(cache=True, nogil=True)
def _within_budget(p, price, money, spot_here):  # type: ignore[no-untyped-def]
    """The largest size that the rest of the budget pays for this slot."""
    for i in range(p.sizes.size - 1, -1, -1):
        size = p.sizes[i]
        spot = min(spot_here, size)
        if spot * price + (size - spot) * p.on_demand_price <= money + 1e-9:
            return spot, size - spot, AFFORD
    return 0, 0, BUDGET


@njit(cache=True, nogil=True)
def run_basic(p, policy, guarded, availability, price, starts, utility, cost, finish, spots, ods):  # type: ignore[no-untyped-def]
    """Replay one basic policy over many windows. availability, price [K]; outputs one per start, plans [starts, hard]."""
    for i in range(starts.size):
        work, spent, left, held_spot, held_od, done = p.work, 0.0, 0.0, 0, 0, 0
        for t in range(p.hard):
            here = availability[starts[i] + t] if p.spot_allowed else 0
            now = price[starts[i] + t]
            spot, od, rule = basic_action(p, policy, t, work, held_spot, held_od, left, here, now)
            if guarded:
                spot, od, rule = guard(p, t, work, held_spot, held_od, left, here, now, spent, spot, od, rule)
            gain, left = step(p, held_spot, held_od, left, spot, od)
            work -= gain
            spent += spot * now + od * p.on_demand_price
            held_spot, held_od = spot, od
            spots[i, t], ods[i, t] = spot, od
            if work <= 1e-9:
                done = t + 1
                break
        worth = worth_at(p, done) if done > 0 else 0.0
        utility[i], cost[i], finish[i] = worth - spent, spent, done
