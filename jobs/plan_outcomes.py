"""From rows to what a change of machines led to: measured when the next one is in force, or the job has ended."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from django.db.models import Exists, F, OuterRef, Q, QuerySet, Subquery

from jobs.models import Decision, Instance, Job, PlanPoint
from jobs.scheduler.plan_outcomes import Led, plan_outcome
from jobs.scheduler.procurement import RULE
from jobs.selectors.costs import instance_cost_usd
from jobs.services.decisions import decision_measured

AT_ONCE = 200


def plan_outcomes_measure(*, now: dt.datetime) -> int:
    """Measure the planner's decisions whose effect is over. Returns how many."""
    return sum(_measure(decision, now) for decision in _over()[:AT_ONCE])


def _over() -> QuerySet[Decision]:
    """Decisions in force until the next one was, or until the job and the cost of its machines ended: `next_at`, `next_id`.

    What cannot be measured yet is left out, so that it does not stand in the way of what can.
    """
    done = Decision.objects.filter(rule=RULE, status="succeeded", executed_at__isnull=False)
    later = done.filter(job=OuterRef("job"), executed_at__gt=OuterRef("executed_at")).order_by("executed_at", "pk")
    costs = Instance.objects.filter(job=OuterRef("job"), ended_at=None, started_at__isnull=False)
    rows = done.filter(outcome_at=None).annotate(
        next_at=Subquery(later.values("executed_at")[:1]), next_id=Subquery(later.values("pk")[:1]), costs=Exists(costs)
    )
    over, with_job = Q(job__ended_at__isnull=False), Q(next_at__isnull=True) | Q(job__ended_at__lt=F("next_at"))
    return (
        rows.filter(Q(next_at__isnull=False) | over)
        .exclude(over & with_job & Q(costs=True))
        .select_related("job", "job__team")
        .order_by("pk")
    )


def _measure(decision: Any, now: dt.datetime) -> bool:
    """`decision` as annotated by `_over`. False if another has measured it."""
    job = decision.job
    machines = list(Instance.objects.filter(job=job))
    ends = decision.next_at is None or (job.ended_at is not None and job.ended_at < decision.next_at)
    over_at = job.ended_at if ends else decision.next_at
    used = _cost_usd(machines, decision.executed_at, now if ends else over_at)
    lasted_s = (over_at - decision.executed_at).total_seconds()
    if ends and job.status != "succeeded":
        led = Led(lasted_s, used, ended=job.status)
    elif ends:
        total, finish_at = _cost_usd(machines, None, now), job.ended_at
        led = _led(decision, lasted_s, used, total, finish_at, job.status)
    else:
        led = _led(decision, lasted_s, used, *_expected_now(job, decision), "")
    return decision_measured(decision=decision, outcome=plan_outcome(decision.expected, led), now=now)


def _led(
    decision: Decision, lasted_s: float, used: float, total: float | None, finish_at: dt.datetime | None, ended: str
) -> Led:
    """`total`: USD of the whole job; the plan's own begins with the proposal."""
    before = float(decision.evidence.get("spent_usd") or 0.0)
    cost = None if total is None else max(0.0, total - before)
    finish_s = None if finish_at is None else (finish_at - decision.created_at).total_seconds()
    return Led(lasted_s, used, cost, finish_s, ended)


def _expected_now(job: Job, decision: Any) -> tuple[float | None, dt.datetime | None]:
    """Total cost and end by the newest plan before the next change was in force; where none was kept, by that change's own."""
    points = PlanPoint.objects.filter(
        job=job, at__gt=decision.created_at, at__lte=decision.next_at, cost_usd__isnull=False, finish_at__isnull=False
    )
    if (point := points.order_by("-at").first()) is not None:
        return point.cost_usd, point.finish_at
    after = Decision.objects.get(pk=decision.next_id)
    cost, finish = after.expected.get("cost_usd"), after.expected.get("finish_s")
    if cost is None or finish is None:
        return None, None
    spent = float(after.evidence.get("spent_usd") or 0.0)
    return spent + cost["expected"], after.created_at + dt.timedelta(seconds=finish["expected"])


def _cost_usd(machines: list[Instance], start: dt.datetime | None, end: dt.datetime) -> float:
    return float(sum((instance_cost_usd(machine, start=start, end=end) for machine in machines), Decimal(0)))
