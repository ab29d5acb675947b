"""One planning epoch for many jobs: jobs of one shape in one market share a single backward pass.

The expected cost to go depends on the work and the slots left, not on how a job came to them. So the pass is made once, for
the largest work and the latest deadline of the group, and every job of the group looks up its own place in it. The
time of day would tie the pass to one deadline and is left out here.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from forecasting.guard import guarded
from forecasting.policies.hazards import ChainSettings
from forecasting.policies.program import choose
from forecasting.policies.stochastic import StochasticProgram, Tables, build_tables
from forecasting.problem import Allocation, Job, Reason, Situation

_SHARED_BYTES = 400_000_000


def decide_many(situations: Sequence[Situation], settings: ChainSettings | None = None) -> list[Allocation]:
    """What each job should hold in this slot, guard included, in the order given."""
    settings = replace(settings or ChainSettings(), day_parts=1)
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, s in enumerate(situations):
        groups[(_shape(s.job), id(s.offers[0].availability), len(s.offers[0].availability), s.spot_price)].append(i)
    answers: list[Allocation | None] = [None] * len(situations)
    for members in groups.values():
        for i, allocation in zip(members, _group([situations[i] for i in members], settings), strict=True):
            answers[i] = allocation
    return [a for a in answers if a is not None]


def _shape(job: Job) -> Job:
    """The job without what differs between jobs of one kind."""
    return replace(job, work=1.0, deadline_slots=1, value=0.0, budget=None, gamma=1.0, approval_slots=0)


def _group(situations: list[Situation], settings: ChainSettings) -> list[Allocation]:
    live = [s for s in situations if s.slots_left > 0]
    alone = StochasticProgram(settings)
    if not live:
        return [guarded(s, alone.decide(s)) for s in situations]
    first = live[0]
    most = replace(first.job, work=max(s.work_left for s in live), deadline_slots=max(s.slots_left for s in live))
    horizon = most.deadline_slots
    offer = first.offers[0]
    tables = build_tables(
        most, offer.availability, float(offer.price[-1]), first.clock_s, horizon, horizon, settings
    ) if _fits(most) else None  # fmt: skip
    if tables is None:
        return [guarded(s, alone.decide(s)) for s in situations]
    market = tables.chain.encode(offer.availability if most.spot_allowed else np.zeros_like(offer.availability))
    return [
        guarded(s, _look_up(s, tables, market, horizon) if s.slots_left > 0 else alone.decide(s)) for s in situations
    ]


def _fits(job: Job) -> bool:
    """Whether the values of every slot can be kept; else each job is planned by itself."""
    from forecasting.policies.stochastic import grid_cell, num_market_states, planning_sizes

    states = (len(planning_sizes(job)) + 1) * (1 if job.changeover_s is None else 4)
    return 4 * job.deadline_slots * (job.work / grid_cell(job) + 1) * states * num_market_states(job) <= _SHARED_BYTES


def _look_up(s: Situation, tables: Tables, market: int, horizon: int) -> Allocation:
    available = s.available if s.spot_price < s.job.on_demand_price else 0
    machine = tables.machine
    costs = machine.costs(s.job, np.array([available]), np.array([s.spot_price]))[0]
    state = machine.state_of(s.job, s.held_spot, s.held_on_demand, s.changeover_left_s)
    mode, to_go = choose(
        tables.after[horizon - s.slots_left], costs, market, machine.gain, machine.nxt, tables.wait,
        float(s.job.curve[s.job.top_size]), tables.top_mode, tables.cell, s.slots_left - 1, s.work_left, state,
    )  # fmt: skip
    spot, od = machine.split(int(mode), available, s.spot_price, s.job.on_demand_price)
    numbers = {
        "spot": float(spot),
        "od": float(od),
        "to_go": float(to_go),
        "work": s.work_left,
        "left": float(s.slots_left),
    }
    words = "{spot:.0f} spot + {od:.0f} on-demand: expected cost to go {to_go:.4g} for {work:.1f} GPU-slots in {left:.0f} slots"
    return Allocation(spot, od, Reason("programme", words, numbers))
