"""StochasticProgram: the exact best plan against a learnt random market.

At the start, and then every quarter of the time to the deadline, a semi-Markov chain is fitted to everything seen so far
(`chain`), and the expected cost to go is computed by backward induction over (slot, market state, work left, what is held)
(`program`). In between, a decision is one look into that table with the exact work left. The price of the slots ahead is
one number: the mean of what is forecast for them, else the one in force (prices are close to a random walk); when that has
moved by more than a share, the table is computed again.
"""

import math
import zlib
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from forecasting.dynamics import Control, control
from forecasting.policies.chain import Chain, fit_chain
from forecasting.policies.hazards import ChainSettings
from forecasting.policies.program import add_solution, choose
from forecasting.problem import Allocation, FloatArray, IntArray, Job, Reason, Situation

PRICE_MOVE = 0.05
MAX_SIZES = 14  # sizes that a plan tells apart
_REMEMBERED_BYTES = 400_000_000
_TABLE_BYTES = 64_000_000
_MAX_CELLS = 900
_MAX_OPERATIONS = 5e8  # of one backward pass, so that a cold decision stays below two seconds
_MAX_FOR_BOTH = 2e8  # of two passes, one per view of the past, so that an epoch of many jobs stays below ten


@dataclass(frozen=True)
class Tables:
    """One solved programme: valid for `keep` slots from the slot it was made for."""

    chain: Chain
    machine: Control
    after: FloatArray  # [keep, W+1, S, X]
    wait: FloatArray  # [S]
    top_mode: int
    cell: float
    price: float  # of a spot GPU in the slots ahead


class StochasticProgram:
    """Least expected cost under a semi-Markov market, within the deadline guard."""

    name = "StochasticProgram"

    def __init__(
        self, settings: ChainSettings | None = None, refreshes: int = 4, name: str = "StochasticProgram"
    ) -> None:
        self.settings = settings or ChainSettings()
        self.refreshes = refreshes
        self.name = name
        self._tables: OrderedDict[tuple[object, ...], Tables] = OrderedDict()

    def decide(self, situation: Situation) -> Allocation:
        """The mode of least expected cost to go."""
        s = situation
        job = s.job
        if s.slots_left <= 0:
            return self._late(s)
        every = refresh_slots(job, self.refreshes)
        made_at = self._made_at(s, every)
        back = s.slot - made_at
        tables = self._solved(s, made_at, every)
        available = s.available if s.spot_price < job.on_demand_price else 0
        seen = s.offers[0].availability if job.spot_allowed else np.zeros_like(s.offers[0].availability)
        state = tables.machine.state_of(job, s.held_spot, s.held_on_demand, s.changeover_left_s)
        market = tables.chain.encode(seen)
        costs = tables.machine.costs(job, np.array([available]), np.array([s.spot_price]))[0]
        mode, to_go = choose(
            tables.after[back], costs, market, tables.machine.gain, tables.machine.nxt, tables.wait,
            float(job.curve[job.top_size]), tables.top_mode, tables.cell, s.slots_left - 1, s.work_left, state,
        )  # fmt: skip
        spot, od = tables.machine.split(int(mode), available, s.spot_price, job.on_demand_price)
        return Allocation(spot, od, self._reason(s, tables, market, spot, od, float(to_go)))

    def _late(self, s: Situation) -> Allocation:
        """Past the deadline the programme has no plan: all the spot there is; the guard decides about on-demand."""
        size = max((n for n in s.job.sizes if n <= s.available), default=0)
        return Allocation(
            size, 0, Reason("late", "past the deadline, {work:.1f} GPU-slots left", {"work": s.work_left})
        )

    def _made_at(self, s: Situation, every: int) -> int:
        """The slot whose knowledge the table is made of: the last refresh, or later if the price has moved since."""
        made_at = s.slot - s.slot % every
        prices = s.offers[0].price[-1 - (s.slot - made_at) :]
        base = 0
        for i in range(1, len(prices)):
            if abs(prices[i] - prices[base]) > PRICE_MOVE * abs(prices[base]):
                base = i
        return made_at + base

    def _solved(self, s: Situation, made_at: int, every: int) -> Tables:
        stop = len(s.offers[0].availability) - (s.slot - made_at)
        past = s.offers[0].availability[:stop]
        # A forecast is known of the present slot only: where the table is older, the price of its slot stays.
        is_now = stop == len(s.offers[0].availability)
        price = s.offers[0].price_ahead(s.slots_left) if is_now else float(s.offers[0].price[stop - 1])
        key = (s.job, made_at, stop, price, zlib.crc32(past.tobytes()))
        found = self._tables.get(key)
        if found is None:
            clock = s.clock_s - (s.slot - made_at) * s.job.slot_s
            keep = min(every, s.job.deadline_slots - made_at)
            found = build_tables(s.job, past, price, clock, s.job.deadline_slots - made_at, keep, self.settings)
            self._tables[key] = found
            while len(self._tables) > 1 and sum(t.after.nbytes for t in self._tables.values()) > _REMEMBERED_BYTES:
                self._tables.popitem(last=False)
        return found

    def _reason(self, s: Situation, tables: Tables, market: int, spot: int, od: int, to_go: float) -> Reason:
        level = int(tables.chain.sizes[tables.chain.level[market]])
        numbers = {
            "spot": float(spot), "od": float(od), "to_go": to_go, "work": s.work_left, "left": float(s.slots_left),
            "level": float(level), "price": s.spot_price,
        }  # fmt: skip
        words = "{spot:.0f} spot + {od:.0f} on-demand: expected cost to go {to_go:.4g} for {work:.1f} GPU-slots in {left:.0f} slots"
        return Reason("programme", words + "; spot carries {level:.0f} at {price:.4g}", numbers)


def refresh_slots(job: Job, refreshes: int) -> int:
    """Slots between two fits: the deadline's share, or fewer where a table for that many slots would not fit into memory."""
    sizes, cells = planning_sizes(job), int(np.ceil(job.work / grid_cell(job)))
    states = len(sizes) + 1 if job.changeover_s is None else 4 * (2 * len(sizes) + 1)
    row = 4 * (cells + 1) * states * num_market_states(job)
    return int(max(1, min(-(-job.deadline_slots // refreshes), _TABLE_BYTES // row)))


def build_tables(
    job: Job, past: IntArray, price: float, clock_s: float, slots_left: int, keep: int, settings: ChainSettings
) -> Tables:
    """Fit the chain and solve the programme for the slots that are left, at `price` in all but the present one."""
    past = past if job.spot_allowed and price < job.on_demand_price else np.zeros_like(past)
    plan_job = replace(job, allowed_sizes=planning_sizes(job))
    machine, levels = pure_modes(plan_job), np.array([0, *plan_job.sizes])
    chains = [fit_chain(past, levels, job.slot_s, clock_s, view) for view in views(job, settings)]
    carried = levels[chains[0].level]
    costs = np.ascontiguousarray(machine.costs(job, carried, np.full(len(carried), price)).T, dtype=np.float32)
    cell, (wait, top_mode), speed = grid_cell(job), waits(job, machine), float(job.curve[job.top_size])
    cells = int(np.ceil(job.work / cell - 1e-9))
    after = np.zeros((keep, cells + 1, machine.gain.shape[0], len(carried)), dtype=np.float32)
    for chain in chains:
        add_solution(
            after, np.float32(1 / len(chains)), costs, chain.moves, chain.parts(clock_s, slots_left), machine.gain, machine.nxt,
            wait, speed, top_mode, cell, 2.0 * job.on_demand_price * job.top_size / speed,
        )  # fmt: skip
    return Tables(chains[0], machine, after, wait, top_mode, cell, price)


def views(job: Job, settings: ChainSettings) -> list[ChainSettings]:
    """The past as a plan learns from it: all of it alike and, where two passes do not take long, its last days first.

    Nobody knows whether a market has turned. Each view is believed with one half, so the cost to go is the mean of both.
    The whole past says less of the next days than its counts pretend, so that view spreads its spells wider.
    """
    whole = replace(settings, recent_half_life_s=math.inf, spread_ages=True)
    return [whole] if 2 * _operations(job) > _MAX_FOR_BOTH else [whole, settings]


def planning_sizes(job: Job) -> tuple[int, ...]:
    """The sizes that a plan tells apart: all of them, or an even choice with the smallest and the fastest."""
    sizes = job.sizes
    if len(sizes) <= MAX_SIZES + 1:
        return sizes
    picked = {sizes[round(i * (len(sizes) - 1) / (MAX_SIZES - 1))] for i in range(MAX_SIZES)}
    return tuple(sorted(picked | {job.top_size}))


def num_market_states(job: Job) -> int:
    """An upper bound on the chain's states."""
    return len(planning_sizes(job)) + 2 * len(ChainSettings().age_edges_s)


@lru_cache(maxsize=256)
def pure_modes(job: Job) -> Control:
    """The job's machine; in the changeover form only all-spot and all-on-demand modes, which is all a plan ever needs."""
    machine = control(job)
    if (machine.spot < 0).any():
        return machine
    keep = np.flatnonzero((machine.spot == 0) | (machine.spot == machine.size))
    states = (keep[:, None] * machine.num_steps + np.arange(machine.num_steps)).ravel()
    rank = np.full(machine.gain.shape[0], 0)
    rank[states] = np.arange(len(states))
    pick = np.ix_(states, keep)
    return Control(
        machine.spot[keep], machine.size[keep], machine.num_steps, machine.gain[pick], rank[machine.nxt[pick]]
    )


def grid_cell(job: Job) -> float:
    """Work per grid step: a slot at full speed for one size, an eighth of it for many; coarser where the pass would take long."""
    speed, num_sizes = float(job.curve[job.top_size]), len(planning_sizes(job))
    cell = max(speed if num_sizes == 1 else speed / 8, job.work / _MAX_CELLS)
    return max(cell, job.work / max(40.0, _MAX_OPERATIONS / _per_cell(job)))


def _per_cell(job: Job) -> float:
    """Operations of a backward pass per grid step of work."""
    num_sizes = len(planning_sizes(job))
    modes = num_sizes + 1 if job.changeover_s is None else 2 * num_sizes + 1
    return float(job.deadline_slots * modes * modes * num_market_states(job))


def _operations(job: Job) -> float:
    return _per_cell(job) * job.work / grid_cell(job)


def waits(job: Job, machine: Control) -> tuple[FloatArray, int]:
    """Slots of progress lost when a state goes to full on-demand, shape [S], and the mode that is full on-demand."""
    speed = float(job.curve[job.top_size])
    top_mode = int(np.flatnonzero((machine.size == job.top_size) & (machine.spot <= 0))[-1])
    if job.changeover_s is None:
        return 1 - machine.gain[:, top_mode] / speed, top_mode
    wait = np.full(machine.gain.shape[0], job.changeover_s / job.slot_s)
    for step in range(machine.num_steps):
        left = job.changeover_s / job.slot_s - step if step else 0.0
        wait[top_mode * machine.num_steps + step] = left
    return wait, top_mode
