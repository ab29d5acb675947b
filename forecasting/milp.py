"""The same problem as an integer program through HiGHS: for several offers, for budgets, and as a second opinion.

A flow over (slot, state): in each slot exactly one transition is taken, from what is held to what will be held. Binary
y[T] says that the job is finished by the end of slot T. Legend: T slots, O offers, S states, A arcs.
"""

from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from forecasting.clairvoyant import Optimum
from forecasting.dynamics import Control, control
from forecasting.problem import FloatArray, IntArray, Job


@dataclass(frozen=True)
class OfferSeries:
    """The known future of one offer. availability, price: shape [T]; moving into it costs `move_cost`."""

    availability: IntArray
    price: FloatArray
    on_demand_price: float | None = None
    spot_allowed: bool = True
    move_cost: float = 0.0


@dataclass(frozen=True)
class OfferPlan:
    """Best plan over several offers. offer [T] is -1 in idle slots."""

    utility: float
    cost: float
    finish_slot: int | None
    offer: IntArray
    n_spot: IntArray
    n_on_demand: IntArray


@dataclass(frozen=True)
class _Arc:
    """One transition: which state before, which after, what it gains and costs in each slot (inf: not possible)."""

    before: int
    after: int
    gain: float
    cost: FloatArray  # [T]
    holds: tuple[int, int]  # offer, mode


def solve_offers(job: Job, offers: list[OfferSeries], time_limit_s: float = 60.0) -> OfferPlan:
    """The exact optimum over several offers; the job sits in one at a time and a move is a start plus its price.

    Raises ValueError if HiGHS does not prove an optimum within the time limit: the problem is too large for this form.
    """
    if not offers:
        raise ValueError("no offer to choose from")
    horizon = min(job.hard_slots, *(len(o.availability) for o in offers))
    machine = control(job)
    arcs, num_states = _arcs(job, machine, offers, horizon)
    chosen, finish = _solve(job, arcs, num_states, horizon, time_limit_s)
    return _plan(job, machine, offers, arcs, chosen, finish)


def solve_single(job: Job, availability: IntArray, price: FloatArray, time_limit_s: float = 60.0) -> Optimum:
    """The exact optimum of one offer; also with a budget that binds."""
    plan = solve_offers(job, [OfferSeries(np.asarray(availability), np.asarray(price, float))], time_limit_s)
    return Optimum(plan.utility, plan.cost, plan.finish_slot, plan.n_spot, plan.n_on_demand, True, plan.utility)


def _arcs(job: Job, machine: Control, offers: list[OfferSeries], horizon: int) -> tuple[list[_Arc], int]:
    """Every transition. State 0 is idle; the others are (offer, machine state that holds something)."""
    steps, per_offer = machine.num_steps, machine.gain.shape[0] - machine.num_steps
    num_states = 1 + len(offers) * per_offer
    costs = [_offer_costs(job, machine, offer, horizon) for offer in offers]
    free = np.zeros(horizon)
    arcs = [_Arc(before, 0, 0.0, free, (-1, 0)) for before in range(num_states)]
    for before, (o, mode) in product(range(num_states), product(range(len(offers)), range(1, len(machine.size)))):
        came_from, inner = divmod(before - 1, per_offer) if before else (o, -1)
        stays = came_from == o and before > 0
        state = inner + steps if stays else 0  # a move to another offer starts from nothing held
        target = int(machine.nxt[state, mode]) - steps
        cost = costs[o][:, mode] + (0.0 if stays or before == 0 else offers[o].move_cost)
        if np.isfinite(cost).any():
            arcs.append(_Arc(before, 1 + o * per_offer + target, float(machine.gain[state, mode]), cost, (o, mode)))
    return arcs, num_states


def _offer_costs(job: Job, machine: Control, offer: OfferSeries, horizon: int) -> FloatArray:
    from dataclasses import replace

    p_od = job.on_demand_price if offer.on_demand_price is None else offer.on_demand_price
    local = replace(job, on_demand_price=p_od, spot_allowed=job.spot_allowed and offer.spot_allowed)
    return machine.costs(local, np.asarray(offer.availability[:horizon]), np.asarray(offer.price[:horizon], float))


def _solve(
    job: Job, arcs: list[_Arc], num_states: int, horizon: int, time_limit_s: float
) -> tuple[list[int], int | None]:
    """Index of the arc taken in each slot, and the finishing slot."""
    num_arcs = len(arcs)
    cost = np.array([arc.cost for arc in arcs]).T  # [T, A]
    gain, values = np.array([arc.gain for arc in arcs]), job.values()[:horizon]
    n = horizon * num_arcs + horizon
    objective = np.concatenate([np.where(np.isfinite(cost), cost, 0.0).ravel(), -values])
    upper = np.concatenate([np.isfinite(cost).ravel().astype(float), np.ones(horizon)])
    constraints = [_flow(arcs, num_states, horizon, n), _finish(job, gain, horizon, n)]
    constraints.append(_row(np.arange(horizon * num_arcs, n), np.ones(horizon), n, 0.0, 1.0))
    if job.budget is not None:
        constraints.append(_row(np.arange(horizon * num_arcs), objective[: horizon * num_arcs], n, -np.inf, job.budget))
    options = {"time_limit": time_limit_s, "mip_rel_gap": 1e-9}
    found = milp(objective, integrality=np.ones(n), bounds=Bounds(0, upper), constraints=constraints, options=options)
    if found.x is None or found.status != 0:
        raise ValueError(
            f"no proven optimum within {time_limit_s:g} s ({found.message}); shorten the window or take fewer sizes"
        )
    taken = np.asarray(found.x[: horizon * num_arcs]).reshape(horizon, num_arcs).argmax(axis=1)
    done = np.flatnonzero(found.x[horizon * num_arcs :] > 0.5)
    return [int(a) for a in taken], int(done[0]) + 1 if len(done) else None


def _flow(arcs: list[_Arc], num_states: int, horizon: int, n: int) -> LinearConstraint:
    """What enters a state in slot t leaves it in slot t + 1; slot 0 leaves idle."""
    rows, cols, data = [], [], []
    for t, (a, arc) in product(range(horizon), enumerate(arcs)):
        rows.append(t * num_states + arc.before)
        cols.append(t * len(arcs) + a)
        data.append(1.0)
        if t + 1 < horizon:
            rows.append((t + 1) * num_states + arc.after)
            cols.append(t * len(arcs) + a)
            data.append(-1.0)
    right = np.zeros(horizon * num_states)
    right[0] = 1.0
    return LinearConstraint(coo_array((data, (rows, cols)), shape=(horizon * num_states, n)).tocsr(), right, right)


def _finish(job: Job, gain: FloatArray, horizon: int, n: int) -> LinearConstraint:
    """Finished by the end of slot T only if the work gained until then is enough: sum gain - L y[T] >= 0."""
    rows, cols, data = [], [], []
    for t in range(horizon):
        for past in range(t + 1):
            rows += [t] * len(gain)
            cols += list(range(past * len(gain), (past + 1) * len(gain)))
            data += list(gain)
        rows.append(t)
        cols.append(horizon * len(gain) + t)
        data.append(-job.work * (1 - 1e-9))
    return LinearConstraint(coo_array((data, (rows, cols)), shape=(horizon, n)).tocsr(), 0.0, np.inf)


def _row(columns: IntArray, values: FloatArray, n: int, low: float, high: float) -> LinearConstraint:
    return LinearConstraint(
        coo_array((values, (np.zeros(len(columns), int), columns)), shape=(1, n)).tocsr(), low, high
    )


def _plan(
    job: Job, machine: Control, offers: list[OfferSeries], arcs: list[_Arc], chosen: list[int], finish: int | None
) -> OfferPlan:
    horizon = len(chosen)
    where, spot, od, cost = np.full(horizon, -1), np.zeros(horizon, np.int64), np.zeros(horizon, np.int64), 0.0
    for t, arc in enumerate(arcs[a] for a in chosen):
        if finish is None or t >= finish:
            break
        cost += float(arc.cost[t])
        o, mode = arc.holds
        if o < 0:
            continue
        offer = offers[o]
        p_od = job.on_demand_price if offer.on_demand_price is None else offer.on_demand_price
        here = int(offer.availability[t]) if job.spot_allowed and offer.spot_allowed else 0
        where[t] = o
        spot[t], od[t] = machine.split(mode, here, float(offer.price[t]), p_od)
    return OfferPlan(job.value_at(finish) - cost, cost, finish, where, spot, od)
