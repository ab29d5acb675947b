"""What the page of a planned job shows beside the rest: its plan, its curves over one time axis, and the baselines."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from django.conf import settings

from jobs.machines import is_planned
from jobs.models import Instance, Job, MarketForecast, Offer, PlanPoint, PlanState
from jobs.selectors.baselines import baselines_of
from jobs.selectors.forecasts import forecasts_of
from jobs.selectors.market_steps import quotes_between, steps_of
from jobs.selectors.marks import Moment, moments_of
from jobs.selectors.planning import ACTIVE

MAX_CORNERS = 1_500
CROWDED = 12
BAND = ("0.1", "0.9")  # of 80 %


def plan_now(*, job: Job) -> PlanState | None:
    """What the planner last said of a job that it looks after; None of a draft, while paused, after the end, at first."""
    if not is_planned(job) or job.status not in ACTIVE:
        return None
    return _last_plan(job)


def _last_plan(job: Job) -> PlanState | None:
    """The epoch that makes the first plan gives its time before it stores it: that is none yet."""
    return PlanState.objects.filter(job=job, planned_at__isnull=False).exclude(plan={}).first()


def planned_page(*, job: Job, now: dt.datetime, cost_usd: Decimal) -> dict[str, Any]:
    """Context of the cards; `planned` is None for a job whose size is given by hand, or that waits for its first plan."""
    state = _last_plan(job) if is_planned(job) and job.status != "draft" else None
    if state is None:
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
            "lanes": _lanes(moments_of(job)),
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
    known = forecasts_of(offers=[offer]) if offer is not None and job.ended_at is None else {}
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
        **{f"{name}_ahead": band_ahead(row, now) for name, row in _by_name(known).items()},
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


def _lanes(marks: list[Moment]) -> list[dict[str, Any]]:
    """The decisions above the chart, those of one direction in a lane. Of many only the open ones keep their numbers."""
    lanes = {name: [one for one in marks if one.decision.direction == name] for name in ("forward", "backward")}
    return [{"name": name, "marks": mine, "crowded": len(mine) > CROWDED} for name, mine in lanes.items() if mine]


def _by_name(known: dict[tuple[int, str], MarketForecast]) -> dict[str, MarketForecast | None]:
    """The forecasts of one offer by the name of the line that they go on."""
    rows = {target: row for (_, target), row in known.items()}
    return {"price": rows.get("price"), "count": rows.get("availability")}


def band_ahead(row: MarketForecast | None, now: dt.datetime) -> dict[str, Any] | None:
    """Moments and the 80 % band of a forecast from now on, with its median and its mean; None where nothing lies ahead."""
    if row is None:
        return None
    gap = dt.timedelta(seconds=row.gap_s)
    moments = [row.start_at + gap * i for i in range(len(row.mean))]
    past = sum(at + gap <= now for at in moments)
    if past == len(moments):
        return None
    lines = {
        "low": row.quantiles[BAND[0]],
        "high": row.quantiles[BAND[1]],
        "median": row.quantiles["0.5"],
        "mean": row.mean,
    }
    # The last value holds to the end of its tick.
    times = [max(at, now) for at in moments[past:]] + [moments[-1] + gap]
    return {"times": times, **{name: line[past:] + line[-1:] for name, line in lines.items()}}


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
