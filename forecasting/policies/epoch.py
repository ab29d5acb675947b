"""One planning epoch for many jobs: jobs of one shape in one market share a single backward pass.

The expected cost to go depends on the work and the slots left, not on how a job came to them. So the pass is made once, for
the largest work and the latest deadline of the group, and every job of the group looks up its own place in it. The
time of day would tie the pass to one deadline and is left out here.
"""

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from forecasting.guard import guarded
from forecasting.outlook import (
    LATE_SLOTS,
    Outlook,
    draw_paths,
    roll,
    spot_ends,
    steady_outlook,
    summarize,
    work_quantiles,
)
from forecasting.policies.chain import fit_chain
from forecasting.policies.hazards import ChainSettings
from forecasting.policies.program import choose
from forecasting.policies.stochastic import StochasticProgram, Tables, build_tables, planning_sizes, pure_modes
from forecasting.problem import Allocation, IntArray, Job, Reason, Situation

_SHARED_BYTES = 250_000_000
_THREADS = 2


@dataclass(frozen=True)
class Planned:
    """What to hold in this slot, and what following the programme is likely to come to.

    `unasked` is what to hold if on-demand could be had without asking: it differs where only the time for an answer is running out.
    """

    allocation: Allocation
    unasked: Allocation
    outlook: Outlook


def decide_many(situations: Sequence[Situation], settings: ChainSettings | None = None) -> list[Allocation]:
    """What each job should hold in this slot, guard included, in the order given."""
    return [planned.allocation for planned in plan_many(situations, settings=settings, num_paths=1)]


def plan_many(
    situations: Sequence[Situation],
    *,
    spreads: Sequence[float] | None = None,
    deadlines: Sequence[float] | None = None,
    settings: ChainSettings | None = None,
    num_paths: int = 32,
) -> list[Planned]:
    """The same with the outlook. `spreads`: per job the relative standard deviation of the work left; a tenth if absent.

    `deadlines`: per job the slots until the deadline that the chance is told of; those of the situation if absent.
    """
    settings = replace(settings or ChainSettings(), day_parts=1)
    spreads = spreads or [0.1] * len(situations)
    ends = deadlines or [float(s.slots_left) for s in situations]
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, s in enumerate(situations):
        groups[(_shape(s.job), id(s.offers[0].availability), len(s.offers[0].availability), s.spot_price)].append(i)
    answers: list[Planned | None] = [None] * len(situations)

    def plan(members: list[int]) -> None:
        group, looks = [situations[i] for i in members], [_Look(spreads[i], ends[i], num_paths) for i in members]
        for i, planned in zip(members, _group(group, looks, settings), strict=True):
            answers[i] = planned

    if len(groups) == 1:
        plan(next(iter(groups.values())))
    elif groups:  # the compiled passes hold no lock, so groups run beside each other
        with ThreadPoolExecutor(min(_THREADS, len(groups))) as pool:
            list(pool.map(plan, groups.values()))
    return [a for a in answers if a is not None]


def _shape(job: Job) -> Job:
    """The job without what differs between jobs of one kind."""
    return replace(job, work=1.0, deadline_slots=1, value=0.0, budget=None, gamma=1.0, approval_slots=0)


@dataclass(frozen=True)
class _Look:
    """How a job's outlook is told."""

    spread: float
    deadline: float
    num_paths: int


def _group(situations: list[Situation], looks: list[_Look], settings: ChainSettings) -> list[Planned]:
    live = [s for s in situations if s.slots_left > 0]
    alone = StochasticProgram(settings)
    if not live:
        return [_alone(s, alone, look) for s, look in zip(situations, looks, strict=True)]
    first = live[0]
    most = replace(first.job, work=max(s.work_left for s in live), deadline_slots=max(s.slots_left for s in live))
    horizon = most.deadline_slots
    offer = first.offers[0]
    tables = build_tables(
        most, offer.availability, float(offer.price[-1]), first.clock_s, horizon, horizon, settings
    ) if _fits(most) else None  # fmt: skip
    if tables is None:
        return [_alone(s, alone, look) for s, look in zip(situations, looks, strict=True)]
    market = tables.chain.encode(offer.availability if most.spot_allowed else np.zeros_like(offer.availability))
    paths = draw_paths(tables.chain.moves[0], market, horizon, looks[0].num_paths)
    out = []
    for s, look in zip(situations, looks, strict=True):
        if s.slots_left <= 0:
            out.append(_alone(s, alone, look))
            continue
        wish = _look_up(s, tables, market, horizon)
        out.append(Planned(guarded(s, wish), _unasked(s, wish), _outlook(s, tables, paths, horizon, look)))
    return out


def _alone(s: Situation, policy: StochasticProgram, look: _Look) -> Planned:
    """A job with a pass of its own, or past its deadline: the outlook takes the allocation to stay, at full size if it is idle."""
    wish = policy.decide(s)
    allocation = guarded(s, wish)
    spot, on_demand = allocation.n_spot, allocation.n_on_demand
    if not allocation.size:
        on_demand = s.job.top_size
    works = work_quantiles(s.work_left, look.spread, look.num_paths)
    outlook = steady_outlook(s.job, works, spot, on_demand, s.spot_price, look.deadline)
    return Planned(allocation, _unasked(s, wish), outlook)


def _unasked(s: Situation, wish: Allocation) -> Allocation:
    if not s.job.approval_slots:
        return guarded(s, wish)
    return guarded(replace(s, job=replace(s.job, approval_slots=0)), wish)


def _outlook(s: Situation, tables: Tables, paths: IntArray, horizon: int, look: _Look) -> Outlook:
    machine, speed = tables.machine, float(s.job.curve[s.job.top_size])
    carried = tables.chain.sizes[tables.chain.level]
    price = s.spot_price
    spot_pays = price < s.job.on_demand_price and s.job.spot_allowed
    costs = machine.costs(s.job, carried if spot_pays else np.zeros_like(carried), np.full(len(carried), price))
    now_costs = machine.costs(s.job, np.array([s.available if spot_pays else 0]), np.array([price]))[0]
    total, ends = roll(
        tables.after, horizon - s.slots_left, costs, now_costs, machine.gain, machine.nxt, tables.wait, speed,
        tables.top_mode, tables.cell, s.slots_left, work_quantiles(s.work_left, look.spread, len(paths)),
        machine.state_of(s.job, s.held_spot, s.held_on_demand, s.changeover_left_s), paths,
        s.job.top_size * s.job.on_demand_price, LATE_SLOTS * horizon,
    )  # fmt: skip
    return summarize(total, ends, look.deadline)


def spot_only_outlook(
    s: Situation, *, spread: float = 0.1, deadline: float | None = None, num_paths: int = 64
) -> Outlook:
    """What would come if no on-demand were bought: the job runs on the spot of drawn market paths, to no end where none comes."""
    settings = ChainSettings(day_parts=1)
    sizes = np.array([0, *planning_sizes(s.job)])
    past = s.offers[0].availability
    chain = fit_chain(past, sizes, s.job.slot_s, s.clock_s, replace(settings, spread_ages=True))
    horizon = min(2048, LATE_SLOTS * max(s.slots_left, 16))
    paths = draw_paths(chain.moves[0], chain.encode(past), horizon, num_paths)
    carried = sizes[chain.level[paths]]  # [P, T]
    carried[:, 0] = sizes[np.searchsorted(sizes, s.available, side="right") - 1]
    before = np.concatenate([np.full((num_paths, 1), s.held_spot), carried[:, :-1]], axis=1)
    lost = np.minimum(1.0, (s.job.changeover_s or 0.0) / s.job.slot_s)
    gains = s.job.curve[carried] * np.where(carried > before, 1 - lost, 1.0)
    end = float(s.slots_left) if deadline is None else deadline
    return spot_ends(gains, carried * s.spot_price, work_quantiles(s.work_left, spread, num_paths), end)


def _fits(job: Job) -> bool:
    """Whether the values of every slot can be kept; else each job is planned by itself."""
    from forecasting.policies.stochastic import grid_cell, num_market_states, planning_sizes

    states = pure_modes(
        replace(job, work=1.0, deadline_slots=1, value=0.0, allowed_sizes=planning_sizes(job))
    ).gain.shape[0]
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
