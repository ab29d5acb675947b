"""What the page of a planned job shows beside the rest: its plan, its curves over one time axis, and the baselines."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from django.conf import settings

from jobs.machines import is_planned
from jobs.models import Instance, Job, Offer, PlanPoint, PlanState
from jobs.selectors.baselines import baselines_of
from jobs.selectors.market_steps import quotes_between, steps_of

MAX_CORNERS = 1_500


def planned_page(*, job: Job, now: dt.datetime, cost_usd: Decimal) -> dict[str, Any]:
    """Context of the cards; `planned` is None for a job whose size is given by hand, or that waits for its first plan."""
    state = PlanState.objects.filter(job=job).first() if is_planned(job) and job.status != "draft" else None
    if state is None or state.planned_at is None:
        return {"planned": None, "is_planned": is_planned(job)}
    plan = state.plan
    return {
        "is_planned": True,
        "planned": {
            "state": state,
            "plan": plan,
            "moments": {name: _at(plan.get(name)) for name in ("last_safe_at",)},
            "finish": {name: _at(text) for name, text in (plan.get("finish_at") or {}).items()},
            "meter": _meter(plan, job, float(cost_usd)),
            "baselines": baselines_of(job=job, state=state, slot_s=float(settings.PLAN_SLOT_S), now=now),
            "chart": planned_chart(job=job, state=state, now=now),
        },
    }


def _at(text: str | None) -> dt.datetime | None:
    return dt.datetime.fromisoformat(text) if text else None


def _meter(plan: dict[str, Any], job: Job, spent: float) -> dict[str, float] | None:
    """Shares of the budget: spent, and the band of what it will be at the end."""
    band, budget = plan.get("cost_usd"), float(job.budget_usd) if job.budget_usd else None
    if band is None or not budget:
        return None
    return {"spent": spent / budget, **{name: band[name] / budget for name in ("low", "expected", "high")}}


def planned_chart(*, job: Job, state: PlanState, now: dt.datetime) -> dict[str, Any]:
    """Lines as [moments, values]; moments are aware and become the team's clock in the page."""
    start, end = job.submitted_at or job.created_at, job.ended_at or now
    points = list(PlanPoint.objects.filter(job=job).order_by("at"))
    machines = list(Instance.objects.filter(job=job, offer__isnull=False).select_related("offer").order_by("id"))
    offer = _offer(state, machines)
    price, count = _market_lines(offer, start, end)
    sure = state.plan.get("on_demand_usd_per_hour")
    return {
        "start": start,
        "end": end,
        "ended": job.ended_at is not None,
        "deadline": job.deadline,
        "last_safe": _at(state.plan.get("last_safe_at")) if job.ended_at is None else None,
        "finish": {name: _at(text) for name, text in (state.plan.get("finish_at") or {}).items()}
        if job.ended_at is None
        else {},
        "offer": str(offer) if offer else "",
        "goal": job.goal_steps,
        "budget": float(job.budget_usd) if job.budget_usd else None,
        "on_demand": sure,
        "price": price,
        "count": count,
        "spot": held_line(machines, "spot", end),
        "held": held_line(machines, "on_demand", end),
        "steps": [[p.at for p in points] + [end], [p.step for p in points] + [job.current_step]],
        "spent": [[p.at for p in points], [p.spent_usd for p in points]],
        "expected": [[p.at for p in points], [p.cost_usd for p in points]],
        "chance": [[p.at for p in points], [p.chance for p in points]],
    }


def _offer(state: PlanState, machines: list[Instance]) -> Offer | None:
    """The spot offer that is spoken of: the one planned with, else the one that was held last."""
    key = (state.plan.get("spot") or {}).get("offer")
    found = Offer.objects.filter(uuid=key).first() if key else None
    return found or next((m.offer for m in reversed(machines) if m.kind == "spot"), None)


def _market_lines(offer: Offer | None, start: dt.datetime, end: dt.datetime) -> tuple[list[list[Any]], list[list[Any]]]:
    if offer is None:
        return [[], []], [[], []]
    quotes = quotes_between(offers=[offer], start=start, end=end).get(offer.pk, [])
    steps = steps_of(quotes=quotes[-MAX_CORNERS:], until=end, gaps=[])
    return _columns(steps.drawn("price", start)), _columns(steps.drawn("count", start))


def _columns(points: list[tuple[dt.datetime, float | None]]) -> list[list[Any]]:
    return [[at for at, _ in points], [value for _, value in points]]


def held_line(machines: list[Instance], kind: str, end: dt.datetime) -> list[list[Any]]:
    """Machines of a kind that ran, as a step line."""
    changes: list[tuple[dt.datetime, int]] = []
    for machine in machines:
        if machine.kind != kind or machine.started_at is None:
            continue
        changes.append((machine.started_at, 1))
        if machine.ended_at is not None:
            changes.append((machine.ended_at, -1))
    moments: list[dt.datetime] = []
    values: list[int] = []
    num = 0
    for at, change in sorted(changes):
        num += change
        moments.append(at)
        values.append(num)
    if moments:
        moments.append(max(end, moments[-1]))
        values.append(num)
    return [moments, values]
