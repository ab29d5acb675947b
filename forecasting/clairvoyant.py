"""The exact optimum with the future known: the yardstick of every benchmark.

Backward induction over (slot, work left, state). Work is counted in the largest unit that divides every possible
slot's progress, so nothing is rounded where the throughput curve is regular; else the result is bracketed.

Legend: T slots, W units of work, S states, J modes.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from forecasting.dynamics import Control, control, work_unit
from forecasting.problem import FloatArray, IntArray, Job

MAX_UNITS = 40_000
_MAX_CELLS = 400_000_000  # bytes of the choice table


@dataclass(frozen=True)
class Optimum:
    """Best plan for a known future. `utility` is exact if `exact`, else a value that a feasible plan reaches."""

    utility: float
    cost: float
    finish_slot: int | None
    n_spot: IntArray  # [T]
    n_on_demand: IntArray  # [T]
    exact: bool
    upper_bound: float


def clairvoyant(job: Job, availability: IntArray, price: FloatArray) -> Optimum:
    """Solve the job over a known window. availability, price: shape [T]; T is cut to the hard deadline.

    A budget that binds is not a matter for this programme (its state would need the money spent): use
    `forecasting.milp.solve`, which this function calls when the best plan without a budget costs more than the budget.
    """
    horizon = min(len(availability), job.hard_slots)
    availability, price = np.asarray(availability[:horizon], np.int64), np.asarray(price[:horizon], float)
    best = _solve(job, availability, price)
    if job.budget is not None and best.cost > job.budget + 1e-9:
        from forecasting.milp import solve_single  # scipy's solver loads slowly, and only binding budgets need it

        return solve_single(job, availability, price)
    return best


def _solve(job: Job, availability: IntArray, price: FloatArray) -> Optimum:
    table = control(job)
    limit = max(50, min(MAX_UNITS, _MAX_CELLS // max(1, len(availability) * table.gain.shape[0])))
    unit, exact = work_unit(job, table, limit)
    plan = _plan(job, table, availability, price, unit, down=True)
    if exact:
        return plan
    upper = _plan(job, table, availability, price, unit, down=False).utility
    return Optimum(plan.utility, plan.cost, plan.finish_slot, plan.n_spot, plan.n_on_demand, False, upper)


def _plan(job: Job, table: Control, availability: IntArray, price: FloatArray, unit: float, *, down: bool) -> Optimum:
    """One run of the programme with gains rounded down (a feasible plan) or up (a bound)."""
    gain = np.floor(table.gain / unit + 1e-7) if down else np.ceil(table.gain / unit - 1e-7)
    num_units = int(np.ceil(job.work / unit - 1e-7)) if down else int(np.floor(job.work / unit + 1e-7))
    costs = table.costs(job, availability, price)
    values = job.values()[: len(availability)]
    utility, choice = _backward(costs, gain.astype(np.int64), table.nxt, values, max(1, num_units))
    return _follow(job, table, availability, price, choice, gain.astype(np.int64), max(1, num_units), utility)


def _follow(job: Job, table: Control, availability: IntArray, price: FloatArray, choice: np.ndarray, gain: IntArray, left: int,
            utility: float) -> Optimum:  # fmt: skip
    """Walk the chosen modes forward into a plan."""
    horizon = len(availability)
    spot, on_demand = np.zeros(horizon, dtype=np.int64), np.zeros(horizon, dtype=np.int64)
    state, finish = 0, None
    for t in range(horizon):
        mode = int(choice[t, left, state])
        available = int(availability[t]) if job.spot_allowed else 0
        spot[t], on_demand[t] = table.split(mode, available, float(price[t]), job.on_demand_price)
        left -= int(gain[state, mode])
        state = int(table.nxt[state, mode])
        if left <= 0:
            finish = t + 1
            break
    cost = float(spot @ price + on_demand.sum() * job.on_demand_price)
    return Optimum(utility, cost, finish, spot, on_demand, True, utility)


@njit(cache=True, nogil=True)
def _backward(costs, gain, nxt, values, num_units):  # type: ignore[no-untyped-def]
    """Value of the start and the best mode of every cell. costs [T,J], gain and nxt [S,J], values [T]."""
    horizon, num_modes = costs.shape
    num_states = gain.shape[0]
    top = gain.max()
    after = np.zeros((num_units + 1, num_states))
    now = np.zeros((num_units + 1, num_states))
    choice = np.zeros((horizon, num_units + 1, num_states), dtype=np.uint8)
    for t in range(horizon - 1, -1, -1):
        # Work left below this cannot occur yet: not even full speed since the start reaches it.
        for left in range(max(1, num_units - t * top), num_units + 1):
            for state in range(num_states):
                best, arg = after[left, 0], 0
                for mode in range(1, num_modes):
                    cost = costs[t, mode]
                    if cost == np.inf:
                        continue
                    rest = left - gain[state, mode]
                    got = (values[t] if rest <= 0 else after[rest, nxt[state, mode]]) - cost
                    if got > best + 1e-12:
                        best, arg = got, mode
                now[left, state] = best
                choice[t, left, state] = arg
        after, now = now, after
    return after[num_units, 0], choice
