"""AHAP: adaptive hybrid allocation with predictions, by committed horizon control.

Ours after the abstract of arXiv 2512.20967: every slot the coming `window` slots are forecast and their integer program
is solved against the uniform-progress line; the last `commitment` plans are kept, and the job acts on their average for
this slot, repaired to a feasible size. Spot is taken only below `threshold` of the on-demand price, unless behind.
"""

from collections import OrderedDict

import numpy as np

from forecasting.policies.ahanp import floor_size, line_lead
from forecasting.policies.forecasts import Forecaster, markov_forecast
from forecasting.policies.stochastic import pure_modes
from forecasting.policies.window import plan_window
from forecasting.problem import Allocation, FloatArray, IntArray, Job, Reason, Situation

_CELLS = 48


class AHAP:
    """Committed horizon control. `commitment` plans, each over `window` slots, are averaged."""

    def __init__(
        self,
        window: int,
        commitment: int,
        threshold: float,
        forecaster: Forecaster = markov_forecast,
        error_switch: float | None = None,
    ) -> None:
        if not 1 <= commitment <= window:
            raise ValueError(f"commitment {commitment} and window {window}: need 1 <= commitment <= window")
        if threshold <= 0:
            raise ValueError(f"threshold is {threshold}; it is a share of the on-demand price above 0")
        self.window, self.commitment, self.threshold = window, commitment, threshold
        self.forecaster, self.error_switch = forecaster, error_switch
        self.name = f"AHAP({window},{commitment},{threshold:g})" + (
            f"~{error_switch:g}" if error_switch is not None else ""
        )
        self._plans: OrderedDict[tuple[object, ...], FloatArray] = OrderedDict()

    def decide(self, situation: Situation) -> Allocation:
        s, _job = situation, situation.job
        lead = line_lead(s)
        if self.error_switch is not None and self._rolling_error(s) > self.error_switch:
            from forecasting.policies.ahanp import AHANP

            inner = AHANP(0.05).decide(s)
            reason = Reason(
                "forecast_error",
                "rolling forecast error above {limit:.2f}: without forecasts",
                {"limit": self.error_switch},
            )
            return Allocation(inner.n_spot, inner.n_on_demand, reason)
        plans = [self._plan(s, back) for back in range(min(self.commitment, s.slot + 1))]
        wanted = np.mean([plan[back] for back, plan in enumerate(plans)], axis=0)
        return self._repaired(s, float(wanted[0]), float(wanted[1]), lead, len(plans))

    def _repaired(self, s: Situation, spot: float, od: float, lead: float, num_plans: int) -> Allocation:
        """The average of the plans as a feasible size: what spot cannot carry is on-demand only if behind."""
        job = s.job
        cheap = s.spot_price < self.threshold * job.on_demand_price or (lead < 0 and s.spot_price < job.on_demand_price)
        here = s.available if cheap else 0
        size = nearest_size(job, spot + od)
        take = min(here, size)
        fill = size - take
        if fill > round(od) and lead >= 0:
            size = floor_size(job, take + round(od)) if take + round(od) >= job.sizes[0] else 0
            take = min(take, size)
            fill = size - take
        numbers = {"spot": spot, "od": od, "plans": float(num_plans), "lead": 100 * lead, "here": float(here)}
        words = "{plans:.0f} plans ask for {spot:.1f} spot + {od:.1f} on-demand; {here:.0f} spot there, {lead:+.1f} % of the line"
        return Allocation(take, fill, Reason("committed_horizon", words, numbers))

    def _plan(self, s: Situation, back: int) -> FloatArray:
        """Plan made `back` slots ago: (spot, on-demand) of its slots, shape [window, 2]. It saw nothing later."""
        stop = len(s.offers[0].availability) - back
        past, price = s.offers[0].availability[:stop], s.offers[0].price[:stop]
        # Progress at that time is not needed exactly: every plan is made against the line, from the present lead.
        lead = round(line_lead(s), 2)
        key = (s.job, s.slot - back, stop, lead, s.held_spot, s.held_on_demand, past[-1], price[-1])
        found = self._plans.get(key)
        if found is None:
            found = self._solve(s, s.slot - back, past, price)
            self._plans[key] = found
            if len(self._plans) > 256:
                self._plans.popitem(last=False)
        return found

    def _solve(self, s: Situation, slot: int, past: IntArray, price: FloatArray) -> FloatArray:
        job = s.job
        there, at = self.forecaster(past, price, self.window - 1) if self.window > 1 else (np.zeros(0), np.zeros(0))
        available = np.concatenate([[past[-1]], np.round(there)]).astype(np.int64)
        prices = np.concatenate([[price[-1]], at])
        machine = pure_modes(job)
        costs = machine.costs(job, available, prices)
        end = min(slot + self.window, job.deadline_slots)
        target = max(0.0, job.work * end / job.deadline_slots - (job.work - s.work_left))
        target = min(target, s.work_left)
        if target <= 0:
            # Ahead even of the window's end: gain what cheap spot gives, a window's share of the work.
            target = min(s.work_left, job.work * self.window / job.deadline_slots)
            costs = np.where(np.isfinite(costs) & self._pure_spot(job, costs, available, prices), costs, np.inf)
        state = machine.state_of(job, s.held_spot, s.held_on_demand, s.changeover_left_s)
        speed = float(job.curve[job.top_size])
        modes = plan_window(
            costs, machine.gain, machine.nxt, state, target, 1.05 * job.on_demand_price * job.top_size / speed, _CELLS
        )
        rows = [
            machine.split(int(m), int(available[t]), float(prices[t]), job.on_demand_price) for t, m in enumerate(modes)
        ]
        return np.array(rows, dtype=float)

    def _pure_spot(self, job: Job, costs: FloatArray, available: IntArray, prices: FloatArray) -> np.ndarray:
        """Modes that cost no more than spot alone would: [H, J]."""
        machine = pure_modes(job)
        return costs <= machine.size[None, :] * prices[:, None] + 1e-9

    def _rolling_error(self, s: Situation) -> float:
        """Mean absolute one-step error of the availability forecast over the last 12 slots, as a share of n_max."""
        past, price = s.offers[0].availability, s.offers[0].price
        steps = min(12, len(past) - 2)
        if steps < 1:
            return 0.0
        misses = [
            abs(
                float(self.forecaster(past[: len(past) - i], price[: len(past) - i], 1)[0][0])
                - float(past[len(past) - i])
            )
            for i in range(1, steps + 1)
        ]
        return float(np.mean(misses)) / s.job.n_max


def nearest_size(job: Job, n: float) -> int:
    """The allowed size (or 0) nearest to n; the larger of two equally near ones."""
    return min((0, *job.sizes), key=lambda size: (abs(size - n), -size))
