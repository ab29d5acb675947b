"""Run a policy over one window of a known market: the semantics of a replay, one slot after the other.

A policy sees the quotes of slot t before it acts in t. What it holds above a(t) is lost at the start of t. Slots are paid
whole. Legend: T slots of the window, K slots of the series.
"""

import time
from dataclasses import dataclass, field

import numpy as np

from forecasting import kernels
from forecasting.guard import check
from forecasting.policies.base import Policy
from forecasting.problem import FloatArray, IntArray, Job, Offer, Situation


@dataclass(frozen=True)
class Market:
    """A series in slots: availability and price, shape [K]; `start_s` is the time of the first slot."""

    availability: IntArray
    price: FloatArray
    slot_s: float
    start_s: float = 0.0
    name: str = "market"

    def __len__(self) -> int:
        return len(self.availability)

    def offer(self, stop: int) -> Offer:
        """What is known when slot stop - 1 begins."""
        return Offer(self.availability[:stop], self.price[:stop], self.name)


@dataclass(frozen=True)
class Outcome:
    """What one window came to. `finish_slot` counts slots from the start of the window, None if it never finished."""

    utility: float
    cost: float
    finish_slot: int | None
    n_spot: IntArray  # [T]
    n_on_demand: IntArray  # [T]
    work_left: FloatArray  # [T] at the end of each slot
    decide_ms: FloatArray  # one per slot that was decided
    reasons: tuple[str, ...] = field(default=())

    def missed(self, job: Job) -> bool:
        """Whether the soft deadline was missed."""
        return self.finish_slot is None or self.finish_slot > job.deadline_slots


def run_window(policy: Policy, job: Job, market: Market, start: int, *, keep_reasons: bool = False) -> Outcome:
    """Replay one policy over the window that begins in slot `start` of the market."""
    horizon, packed = job.hard_slots, kernels.pack(job)
    if start < 0 or start + horizon > len(market):
        raise ValueError(f"a window of {horizon} slots from slot {start} does not fit into {len(market)} slots")
    spot, od, left_over = np.zeros(horizon, np.int64), np.zeros(horizon, np.int64), np.zeros(horizon)
    work, spent, changeover, finish = job.work, 0.0, 0.0, None
    timings, reasons = [], []
    for t in range(horizon):
        situation = Situation(
            job, t, work, (market.offer(start + t + 1),),
            int(spot[t - 1]) if t else 0, int(od[t - 1]) if t else 0, 0,
            changeover * job.slot_s, spent, market.start_s + (start + t) * job.slot_s,
        )  # fmt: skip
        began = time.perf_counter()
        choice = policy.decide(situation)
        timings.append((time.perf_counter() - began) * 1e3)
        check(situation, choice)
        before = (int(spot[t - 1]), int(od[t - 1])) if t else (0, 0)
        gain, changeover = kernels.step(packed, before[0], before[1], changeover, choice.n_spot, choice.n_on_demand)
        spot[t], od[t] = choice.n_spot, choice.n_on_demand
        work -= gain
        spent += choice.n_spot * float(market.price[start + t]) + choice.n_on_demand * job.on_demand_price
        left_over[t] = max(0.0, work)
        if keep_reasons:
            reasons.append(str(choice.reason))
        if work <= 1e-9:
            finish = t + 1
            break
    return Outcome(job.value_at(finish) - spent, spent, finish, spot, od, left_over, np.array(timings), tuple(reasons))


@dataclass(frozen=True)
class OffersOutcome:
    """One window over several offers: utility, cost (moves included), finish, offer held per slot (-1 idle), moves."""

    utility: float
    cost: float
    finish_slot: int | None
    offer: IntArray  # [T]
    n_spot: IntArray  # [T]
    n_on_demand: IntArray  # [T]
    num_moves: int


def run_offers(
    policy: Policy, job: Job, markets: list[Market], start: int, move_costs: list[float] | None = None
) -> OffersOutcome:
    """Replay a policy over several offers that are known on the same slots. A move is a start, and pays its egress."""
    if not markets or any(start + job.hard_slots > len(market) for market in markets):
        raise ValueError(f"a window of {job.hard_slots} slots from slot {start} does not fit into every offer's series")
    horizon, packed, egress = job.hard_slots, kernels.pack(job), move_costs or [0.0] * len(markets)
    where, spot, od = np.full(horizon, -1), np.zeros(horizon, np.int64), np.zeros(horizon, np.int64)
    work, spent, changeover, finish, num_moves, held, home = job.work, 0.0, 0.0, None, 0, (0, 0), 0
    for t in range(horizon):
        stop = start + t + 1
        offers = tuple(
            Offer(m.availability[:stop], m.price[:stop], m.name, move_cost=egress[i]) for i, m in enumerate(markets)
        )
        clock = markets[0].start_s + (start + t) * job.slot_s
        situation = Situation(job, t, work, offers, *held, home, changeover * job.slot_s, spent, clock)
        choice = policy.decide(situation)
        check(situation, choice)
        if choice.size and sum(held) and choice.offer != home:
            held, changeover, num_moves = (0, 0), 0.0, num_moves + 1
            spent += egress[choice.offer]
        gain, changeover = kernels.step(packed, *held, changeover, choice.n_spot, choice.n_on_demand)
        held = (choice.n_spot, choice.n_on_demand)
        if choice.size:
            home = choice.offer
            where[t] = home
        spot[t], od[t] = held
        work -= gain
        spent += held[0] * float(markets[home].price[start + t]) + held[1] * job.on_demand_price
        if work <= 1e-9:
            finish = t + 1
            break
    return OffersOutcome(job.value_at(finish) - spent, spent, finish, where, spot, od, num_moves)
