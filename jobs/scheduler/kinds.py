"""Kinds of jobs, as far as it matters which policy does best: sizes, tightness of the deadline, length of a changeover. Pure."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from forecasting.problem import Job as Task
from jobs.scheduler.planner import Markets, PlanFacts, slot_of
from jobs.scheduler.speed import Speed
from jobs.scheduler.tasks import sizes_told_apart

SHARES = (0.3, 0.5, 0.7, 0.9)
CHANGEOVERS = (0.05, 0.2, 0.6, 2.0)
WINDOW_SLOTS = 32  # to the deadline of a replayed window
GAMMA = 1.5


@dataclass(frozen=True)
class Kind:
    """`share` of the time to the deadline is what on-demand at full size needs; changeovers in slots; `pace` as in `Markets`."""

    n_min: int
    n_max: int
    slot_s: float
    share: float
    changeover_slots: float
    pace: float = 1.0

    @property
    def key(self) -> str:
        return f"{self.n_min}-{self.n_max} {self.slot_s:g}s {self.share:g} {self.changeover_slots:g}"

    @property
    def sizes(self) -> str:
        return f"{self.n_min} machines" if self.n_min == self.n_max else f"{self.n_min} to {self.n_max} machines"

    @property
    def pressure(self) -> str:
        """How tight it is and what a change costs, in words."""
        return (
            f"on-demand at full size needs {100 * self.share:.0f} % of the time, "
            f"a changeover {self.changeover_slots:g} of a slot of {self.slot_s:g} s"
        )

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def task(self, on_demand_usd_per_hour: float) -> Task:
        """A job of the kind with `WINDOW_SLOTS` to its deadline, whose value is twice its on-demand bill."""
        price = on_demand_usd_per_hour * self.slot_s / 3600
        curve = Speed(1.0).curve(self.n_max)
        work = curve[-1] * max(1.0, self.share * WINDOW_SLOTS - self.changeover_slots)
        return Task(
            work=work,
            deadline_slots=WINDOW_SLOTS,
            value=2 * work * price,
            on_demand_price=price,
            n_min=self.n_min,
            n_max=self.n_max,
            allowed_sizes=sizes_told_apart(self.n_min, self.n_max),
            throughput=curve,
            changeover_s=self.changeover_slots * self.slot_s * self.pace,
            slot_s=self.slot_s * self.pace,
            gamma=GAMMA,
        )


def kind_of(facts: PlanFacts, slot_s: float) -> Kind:
    """The kind of a job that has a pace and a deadline; `slot_s` as the planner's clock."""
    assert facts.time_left_s is not None
    pace, slot_s = Markets(slot_s).pace, slot_of(facts.time_left_s, slot_s)
    share = facts.late_s / max(facts.time_left_s, 1.0)
    return Kind(
        facts.n_min,
        facts.n_max,
        slot_s,
        min(SHARES, key=lambda one: abs(one - share)),
        min(CHANGEOVERS, key=lambda one: abs(math.log(one * slot_s / max(facts.changeover_s, 1e-3)))),
        pace,
    )
