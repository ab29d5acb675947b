"""What others would have paid for a planned job on the same market: policies replayed on the quotes that were seen."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from forecasting.policies.registry import make_policy
from forecasting.problem import Job as Task
from forecasting.simulate import Market, run_window
from jobs.models import Job, Offer, PlanState
from jobs.scheduler.planner import slot_of
from jobs.scheduler.speed import Speed
from jobs.selectors.market import offer_series

BASELINES = {
    "OnDemandOnly": "On-demand only",
    "SpotFirst": "Spot first, on-demand at the last moment",
    "UniformProgress": "Uniform Progress",
}
GAMMA = 4.0  # how long a replay may be late
MAX_SLOTS = 4_096


@dataclass(frozen=True)
class Baseline:
    """`finish_at` None: it would not have finished within `GAMMA` times the deadline."""

    policy: str
    title: str
    cost_usd: float
    finish_at: dt.datetime | None
    in_time: bool | None

    def as_json(self) -> dict[str, Any]:
        finish = self.finish_at.isoformat() if self.finish_at else None
        return {
            "policy": self.policy, "title": self.title, "cost_usd": round(self.cost_usd, 4), "finish_at": finish,
            "in_time": self.in_time,
        }  # fmt: skip


def baselines_of(*, job: Job, state: PlanState | None, slot_s: float, now: dt.datetime) -> list[Baseline]:
    """One line per policy, from the moment at which the job could first be planned. Empty where that has not come.

    The market is that of the offer it began with, as quoted up to `now` (or the end of the job); after that it is taken to stay.
    All see the job as it is known today: its pace, its sizes, its changeover. No approval has to be waited for.
    """
    plan = state.plan if state else {}
    first, on_demand = plan.get("first"), plan.get("on_demand_usd_per_hour")
    if not first or not on_demand or not plan.get("step_time_1_s") or job.deadline is None:
        return []
    offer = Offer.objects.filter(uuid=first["offer"]).first() if first["offer"] else None
    begun = dt.datetime.fromisoformat(first["at"])
    left_s = (job.deadline - begun).total_seconds()
    if offer is None or left_s <= 0 or first["steps_left"] <= 0:
        return []
    slot_s = slot_of(left_s, slot_s)
    task = _task(plan, first, left_s, slot_s, float(on_demand))
    market = _market(offer, begun, min(now, job.ended_at or now), slot_s, task.hard_slots)
    return [] if market is None else [_replayed(name, task, market, begun, slot_s) for name in BASELINES]


def _task(plan: dict[str, Any], first: dict[str, Any], left_s: float, slot_s: float, on_demand: float) -> Task:
    low, high = plan["limits"]["n_min"], plan["limits"]["n_max"]
    speed = Speed(float(plan["step_time_1_s"]), float(plan["serial_share"]))
    work, price = max(1e-6, first["steps_left"] * speed.step_time_1_s / slot_s), on_demand * slot_s / 3600
    slots = max(1, math.floor(left_s / slot_s))
    return Task(
        work=work,
        deadline_slots=slots,
        value=10 * work * price,
        on_demand_price=price,
        n_min=low,
        n_max=high,
        throughput=speed.curve(high),
        changeover_s=float(plan["changeover_s"]),
        slot_s=slot_s,
        gamma=min(GAMMA, max(1.0, MAX_SLOTS / slots)),
    )


def _market(offer: Offer, start: dt.datetime, end: dt.datetime, slot_s: float, num_slots: int) -> Market | None:
    """The offer from `start` on, on `num_slots` slots; what is not known yet is as it was last."""
    end = max(end, start + dt.timedelta(seconds=slot_s))
    series = offer_series(offer=offer, start=start, end=end, gap_s=slot_s)
    if series is None or series.price is None or not len(series):
        return None
    price = np.nan_to_num(np.asarray(series.price, float), nan=float(np.nanmean(series.price))) * slot_s / 3600
    counts = (
        np.full(len(price), 10**6) if series.availability is None else np.nan_to_num(np.asarray(series.availability))
    )
    price, counts = (np.pad(a, (0, max(0, num_slots - len(a))), mode="edge")[:num_slots] for a in (price, counts))
    return Market(counts.astype(np.int64), price, slot_s, start.timestamp(), str(offer))


def _replayed(name: str, task: Task, market: Market, begun: dt.datetime, slot_s: float) -> Baseline:
    outcome = run_window(make_policy(name), task, market, 0)
    slot = outcome.finish_slot
    finish = begun + dt.timedelta(seconds=slot * slot_s) if slot is not None else None
    return Baseline(name, BASELINES[name], float(outcome.cost), finish, not outcome.missed(task))
