"""One planning epoch for many jobs: jobs of one shape in one market share a single backward pass.

The expected cost to go depends on the work and the slots left, not on how a job came to them. So the pass is made once, for
the largest work and the latest deadline of the group, and every job of the group looks up its own place in it. The
time of day would tie the pass to one deadline and is left out here; for the same reason the price of the slots ahead is one number.

A job that follows another policy than the programme is decided by that policy, one by one. Its outlook is that of the policy where
a compiled rule can be run along the paths of the group, else that of the programme, and says so.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from forecasting.guard import guarded
from forecasting.outlook import (
    LATE_SLOTS,
    Outlook,
    draw_paths,
    roll,
    roll_basic,
    spot_ends,
    steady_outlook,
    summarize,
    work_quantiles,
)
from forecasting.policies.base import Policy, packed_job
from forecasting.policies.chain import fit_chain
from forecasting.policies.hazards import ChainSettings
from forecasting.policies.program import choose
from forecasting.policies.stochastic import StochasticProgram, Tables, build_tables, planning_sizes, pure_modes
from forecasting.problem import Allocation, FloatArray, IntArray, Job, Reason, Situation

_SHARED_BYTES = 250_000_000
_THREADS = 2


@dataclass(frozen=True)
class Follow:
    """Another policy than the programme. Policies against a line to the deadline count from its start: `job` is the whole of it,
    of which the situation's slot is slot `slot`."""

    policy: Policy
    job: Job
    slot: int

    def situation(self, s: Situation) -> Situation:
        return replace(s, job=self.job, slot=self.slot)


@dataclass(frozen=True)
class Pass:
    """For how much work and how many slots a backward pass was made: with both, a plan can be computed again by itself."""

    work: float = 0.0
    slots: int = 0


@dataclass(frozen=True)
class Planned:
    """What to hold in this slot, and what following the policy is likely to come to.

    `unasked` is what to hold if on-demand could be had without asking: it differs where only the time for an answer is running out.
    `outlook_of`: whose outlook it is, the name of a policy or `steady` for what stays as it is.
    """

    allocation: Allocation
    unasked: Allocation
    outlook: Outlook
    outlook_of: str = StochasticProgram.name
    made_for: Pass = Pass()


def decide_many(situations: Sequence[Situation], settings: ChainSettings | None = None) -> list[Allocation]:
    """What each job should hold in this slot, guard included, in the order given."""
    return [planned.allocation for planned in plan_many(situations, settings=settings, num_paths=1)]


def plan_many(
    situations: Sequence[Situation],
    *,
    spreads: Sequence[float] | None = None,
    deadlines: Sequence[float] | None = None,
    follow: Sequence[Follow | None] | None = None,
    passes: Sequence[Pass] | None = None,
    settings: ChainSettings | None = None,
    num_paths: int = 32,
) -> list[Planned]:
    """The same with the outlook. `spreads`: per job the relative standard deviation of the work left; a tenth if absent.

    `deadlines`: per job the slots until the deadline that the chance is told of; those of the situation if absent. `follow`: the
    policy of each job, None for the programme. `passes`: what the pass of each job has to be made for at least.
    """
    settings = replace(settings or ChainSettings(), day_parts=1)
    spreads = spreads or [0.1] * len(situations)
    ends = deadlines or [float(s.slots_left) for s in situations]
    others, least = follow or [None] * len(situations), passes or [Pass()] * len(situations)
    looks = [_Look(*parts, num_paths) for parts in zip(spreads, ends, others, least, strict=True)]
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for i, s in enumerate(situations):
        offer = s.offers[0]
        groups[
            (_shape(s.job), id(offer.availability), len(offer.availability), s.spot_price, id(offer.ahead.price))
        ].append(i)
    answers: list[Planned | None] = [None] * len(situations)

    def plan(members: list[int]) -> None:
        group = _group([situations[i] for i in members], [looks[i] for i in members], settings)
        for i, planned in zip(members, group, strict=True):
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
    """Whose decision it is, and how its outlook is told."""

    spread: float
    deadline: float
    follow: Follow | None
    least: Pass
    num_paths: int


def _group(situations: list[Situation], looks: list[_Look], settings: ChainSettings) -> list[Planned]:
    live = [(s, look) for s, look in zip(situations, looks, strict=True) if s.slots_left > 0]
    alone = StochasticProgram(settings)
    if not live:
        return [_alone(s, alone, look) for s, look in zip(situations, looks, strict=True)]
    first = live[0][0]
    work = max(max(s.work_left, look.least.work) for s, look in live)
    horizon = max(max(s.slots_left, look.least.slots) for s, look in live)
    most = replace(first.job, work=work, deadline_slots=horizon)
    offer = first.offers[0]
    tables = build_tables(
        most, offer.availability, offer.price_ahead(horizon), first.clock_s, horizon, horizon, settings
    ) if _fits(most) else None  # fmt: skip
    if tables is None:
        return [_alone(s, alone, look) for s, look in zip(situations, looks, strict=True)]
    market = tables.chain.encode(offer.availability if most.spot_allowed else np.zeros_like(offer.availability))
    paths = draw_paths(tables.chain.moves[0], market, horizon, looks[0].num_paths)
    costs, out = _costs_of_states(first, tables), []
    for s, look in zip(situations, looks, strict=True):
        if s.slots_left <= 0:
            out.append(_alone(s, alone, look))
            continue
        allocation, unasked = _decided(s, look, lambda s: _look_up(s, tables, market, horizon))
        rolled = _followed_outlook(s, look, tables, paths, horizon)
        name = look.follow.policy.name if look.follow is not None and rolled is not None else alone.name
        outlook = rolled or _outlook(s, tables, costs, paths, horizon, look)
        out.append(Planned(allocation, unasked, outlook, name, Pass(work, horizon)))
    return out


def _decided(s: Situation, look: _Look, programme: Callable[[Situation], Allocation]) -> tuple[Allocation, Allocation]:
    """What to hold, and the same if on-demand could be had without asking."""
    if look.follow is not None:
        s = look.follow.situation(s)
        wish = look.follow.policy.decide(s)
    else:
        wish = programme(s)
    allocation = guarded(s, wish)
    return allocation, _unasked(s, wish) if s.job.approval_slots else allocation


def _alone(s: Situation, policy: StochasticProgram, look: _Look) -> Planned:
    """A job with a pass of its own, or past its deadline: the outlook takes the allocation to stay, at full size if it is idle."""
    allocation, unasked = _decided(s, look, policy.decide)
    spot, on_demand = allocation.n_spot, allocation.n_on_demand
    if not allocation.size:
        on_demand = s.job.top_size
    works = work_quantiles(s.work_left, look.spread, look.num_paths)
    outlook = steady_outlook(s.job, works, spot, on_demand, s.spot_price, look.deadline)
    return Planned(allocation, unasked, outlook, "steady")


def _followed_outlook(s: Situation, look: _Look, tables: Tables, paths: IntArray, horizon: int) -> Outlook | None:
    """The outlook of a followed policy that needs no model; None for the others."""
    code = getattr(look.follow.policy, "basic_code", None) if look.follow is not None else None
    if look.follow is None or code is None:
        return None
    line = look.follow.situation(s)
    carried = tables.chain.sizes[tables.chain.level[paths[:, : s.slots_left]]].astype(np.int64)
    carried[:, 0] = s.available
    total, ends = roll_basic(
        packed_job(line), code, line.slot, work_quantiles(s.work_left, look.spread, len(paths)), s.held_spot,
        s.held_on_demand, s.changeover_left_s / s.job.slot_s, carried, s.spot_price, tables.price, LATE_SLOTS * horizon,
    )  # fmt: skip
    return summarize(total, ends, look.deadline)


def _unasked(s: Situation, wish: Allocation) -> Allocation:
    return guarded(replace(s, job=replace(s.job, approval_slots=0)), wish)


def _spot_pays(s: Situation) -> bool:
    return s.spot_price < s.job.on_demand_price and s.job.spot_allowed


def _costs_of_states(s: Situation, tables: Tables) -> FloatArray:
    """Cost of a slot ahead in each state of the market, [X, J]: the same for all jobs of a group."""
    carried = tables.chain.sizes[tables.chain.level]
    there = carried if s.job.spot_allowed and tables.price < s.job.on_demand_price else np.zeros_like(carried)
    return tables.machine.costs(s.job, there, np.full(len(carried), tables.price))


def _outlook(s: Situation, tables: Tables, costs: FloatArray, paths: IntArray, horizon: int, look: _Look) -> Outlook:
    machine, speed = tables.machine, float(s.job.curve[s.job.top_size])
    here = np.array([s.available if _spot_pays(s) else 0])
    now_costs = machine.costs(s.job, here, np.array([s.spot_price]))[0]
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
    prices = np.full(horizon, s.offers[0].price_ahead(max(1, s.slots_left)))
    prices[0] = s.spot_price
    return spot_ends(gains, carried * prices, work_quantiles(s.work_left, spread, num_paths), end)


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
