"""What a planning epoch found is stored: decisions for what changes, and the plan for people."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from forecasting.outlook import Band, Outlook
from jobs.models import Decision, PlanPoint, PlanState
from jobs.scheduler import procurement
from jobs.scheduler.on_demand import on_demand_proposal, with_if_no
from jobs.scheduler.planner import PlanFacts, Wish
from jobs.scheduler.procurement import MACHINES, ON_DEMAND, Settings, Standing
from jobs.selectors.planning import JobRows
from jobs.services.decisions import decision_propose, decision_withdraw

POINTS = 400  # of a job's life, before they are spaced wider


@dataclass(frozen=True)
class Ask:
    """On-demand that has to be asked for. `standby`: not to be bought yet, but there would be no time to ask later."""

    wish: Wish
    standby: bool = False


@dataclass
class Planned:
    """One job of an epoch."""

    rows: JobRows
    facts: PlanFacts
    wish: Wish  # what the planner wants
    today: Wish  # of that, what needs no answer
    standing: Standing
    limits: Settings
    ask: Ask | None = None
    held_back: str = ""  # what keeps the wish smaller than the planner wanted it, in words
    without: Callable[[], Outlook | None] = lambda: None  # what would come without on-demand; costs a moment


def plans_store(*, planned: list[Planned], now: dt.datetime) -> list[Decision]:
    """Propose what changes, withdraw what no longer holds, keep the plans. Returns the new decisions."""
    made: list[Decision] = []
    states, points = [], []
    for one in _not_overtaken(planned, now):
        decisions = _decide(one, now)
        made += decisions
        state = _state(one, decisions, now)
        states.append(state)
        if (point := _point(one, state, now)) is not None:
            points.append(point)
    fields = ["planned_at", "waits_for", "plan"]
    PlanState.objects.bulk_update(states, fields, batch_size=200)
    PlanPoint.objects.bulk_create(points, ignore_conflicts=True)
    return made


def _not_overtaken(planned: list[Planned], now: dt.datetime) -> list[Planned]:
    """Those that no other epoch has planned since their rows were read: a slow one must not order a second time.

    One statement for all jobs that were planned at the same moment before.
    """
    by_moment: dict[dt.datetime | None, list[int]] = defaultdict(list)
    for one in planned:
        by_moment[one.rows.state.planned_at if one.rows.state else None].append(one.rows.job.pk)
    for moment, ids in by_moment.items():
        PlanState.objects.filter(job__in=ids, planned_at=moment).update(planned_at=now)
    ours = set(
        PlanState.objects.filter(job__in=[o.rows.job.pk for o in planned], planned_at=now).values_list(
            "job_id", flat=True
        )
    )
    return [one for one in planned if one.rows.job.pk in ours]


def _decide(one: Planned, now: dt.datetime) -> list[Decision]:
    """The decisions of one job: what has to be asked, and what needs no answer."""
    made: list[Decision] = []
    why = one.held_back
    if one.ask is None:
        _withdraw(one, ON_DEMAND, now, _spot_is_back(one))
    elif (asked := _asked(one, one.ask, now)) is not None:
        made.append(asked)
        if asked.status != "proposed":
            _withdraw(one, MACHINES, now, f"{asked} says more.")
            return made
    if one.ask is not None and not one.ask.standby:
        why = why or "it goes on with what needs no approval."
    proposal = procurement.machines_proposal(one.facts, one.today, one.standing, one.limits, why)
    if proposal is None:
        _withdraw(one, MACHINES, now, "What it rested on no longer holds.")
        return made
    decision = decision_propose(job=one.rows.job, proposal=proposal, now=now, situation=one.facts.as_json())
    return made + ([decision] if decision is not None else [])


def _asked(one: Planned, ask: Ask, now: dt.datetime) -> Decision | None:
    """Ask for on-demand, unless the same is asked already or was refused a moment ago."""
    if one.rows.refused is not None:
        return None
    proposal = on_demand_proposal(one.facts, ask.wish, one.today, one.standing, one.limits, standby=ask.standby)
    numbers = ("on_demand", "up_to")
    for standing in one.rows.asks:
        if standing.subject == ON_DEMAND and all(standing.args.get(n) == proposal.args.get(n) for n in numbers):
            return None
    proposal = with_if_no(proposal, ask.wish, one.without())
    first_usd = (one.rows.state.plan if one.rows.state else {}).get("first_cost_usd")
    if first_usd is not None and ask.wish.cost is not None:
        total = one.facts.spent_usd + ask.wish.cost.expected
        proposal = replace(proposal, extra_usd=max(0.0, total - float(first_usd)))
    return decision_propose(job=one.rows.job, proposal=proposal, now=now, situation=one.facts.as_json())


def _withdraw(one: Planned, subject: str, now: dt.datetime, reason: str) -> None:
    for decision in one.rows.asks:
        if decision.subject == subject:
            decision_withdraw(decision=decision, now=now, reason=reason)


def _spot_is_back(one: Planned) -> str:
    spot = one.facts.spot
    if spot is not None and spot.available >= one.facts.n_min:
        return f"Spot is back: {spot.available} of {one.facts.n_max} in {spot.name}."
    return "On-demand is not needed now."


def _state(one: Planned, made: list[Decision], now: dt.datetime) -> PlanState:
    state = one.rows.state or PlanState.objects.get(job=one.rows.job)
    state.planned_at = now
    state.waits_for = waits_for(one, made)[:200]
    state.plan = _told(one, state.plan, now)
    return state


def waits_for(one: Planned, made: list[Decision]) -> str:
    """Why the job has not what it wants, in words for the queue; empty where it lacks nothing."""
    wish = one.today
    open_asks = [d for d in (*made, *one.rows.asks) if d.status == "proposed"]
    if one.held_back:
        return one.held_back
    if open_asks and one.ask is not None and not one.ask.standby and wish.size < one.wish.size:
        return f"waits for an approval: {open_asks[0]}"
    held, spot = one.facts.held, one.facts.spot
    if not wish.size:
        return f"waits for spot in {spot.name}: {spot.available} of {one.facts.n_min}" if spot else "waits for an offer"
    if held >= wish.size:
        return ""
    if spot is not None and spot.available < wish.spot:
        return f"waits for spot in {spot.name}: {spot.available} of {wish.spot}"
    return f"machines are being started: {held} of {wish.size}"


def _told(one: Planned, before: dict[str, Any], now: dt.datetime) -> dict[str, Any]:
    """The plan as pages, the API and the next epoch read it."""
    facts, wanted, wish = one.facts, one.wish, one.today
    total = facts.spent_usd + wanted.cost.expected if wanted.cost else None
    told: dict[str, Any] = {
        "at": now.isoformat(),
        "rule": wanted.rule,
        "sentence": wanted.sentence,
        "target": {"spot": wish.spot, "on_demand": wish.on_demand},
        "wanted": {"spot": wanted.spot, "on_demand": wanted.on_demand},
        "held": {"spot": facts.held_spot, "on_demand": facts.held_on_demand},
        "limits": {"n_min": facts.n_min, "n_max": facts.n_max},
        "held_back": one.held_back,
        "cost_usd": _band(wanted.cost, facts.spent_usd),
        "finish_at": _moments(wanted.finish, now),
        "chance": wanted.chance,
        "last_safe_at": _moment(wanted.last_safe_s, now),
        "spent_usd": round(facts.spent_usd, 4),
        "first_cost_usd": before.get("first_cost_usd", round(total, 4) if total is not None else None),
        "steps_left": facts.steps_left,
        "step_time_s": facts.speed.step_time_s(max(1, facts.held)) if facts.speed else None,
        "step_time_1_s": facts.speed.step_time_1_s if facts.speed else None,
        "serial_share": facts.speed.serial_share if facts.speed else None,
        "changeover_s": round(facts.changeover_s, 2),
        "on_demand_usd_per_hour": facts.on_demand_usd_per_hour,
        "point_at": before.get("point_at"),
        "first": before.get("first") or _first(facts, now),
    }
    if facts.spot is not None:
        spot = facts.spot
        told["spot"] = {
            "offer": spot.offer, "name": spot.name, "usd_per_hour": spot.usd_per_hour, "available": spot.available,
        }  # fmt: skip
    if told["first_cost_usd"] is None and total is not None:
        told["first_cost_usd"] = round(total, 4)
    return told


def _first(facts: PlanFacts, now: dt.datetime) -> dict[str, Any] | None:
    """What the job was when it could first be planned: where the baselines start."""
    if facts.speed is None:
        return None
    return {
        "at": now.isoformat(),
        "steps_left": facts.steps_left,
        "spent_usd": round(facts.spent_usd, 4),
        "offer": facts.spot.offer if facts.spot else "",
    }


def _band(band: Band | None, before: float = 0.0) -> dict[str, float] | None:
    if band is None:
        return None
    return {"expected": before + band.expected, "low": before + band.low, "high": before + band.high}


def _moments(band: Band | None, now: dt.datetime) -> dict[str, str | None] | None:
    if band is None:
        return None
    return {name: _moment(getattr(band, name), now) for name in ("expected", "low", "high")}


def _moment(seconds: float | None, now: dt.datetime) -> str | None:
    return None if seconds is None else (now + dt.timedelta(seconds=min(seconds, 3.15e8))).isoformat()


def _point(one: Planned, state: PlanState, now: dt.datetime) -> PlanPoint | None:
    """A point of the curves, spaced wider the longer the job has been going."""
    job, facts = one.rows.job, one.facts
    last = state.plan.get("point_at")
    age_s = (now - (job.submitted_at or job.created_at)).total_seconds()
    if last and (now - dt.datetime.fromisoformat(last)).total_seconds() < age_s / POINTS:
        return None
    state.plan["point_at"] = now.isoformat()
    finish = one.wish.finish
    return PlanPoint(
        job=job,
        at=now,
        step=job.current_step,
        spent_usd=facts.spent_usd,
        spot=facts.held_spot,
        on_demand=facts.held_on_demand,
        finish_at=now + dt.timedelta(seconds=min(finish.expected, 3.15e8)) if finish else None,
        cost_usd=facts.spent_usd + one.wish.cost.expected if one.wish.cost else None,
        chance=one.wish.chance,
        last_safe_at=now + dt.timedelta(seconds=one.wish.last_safe_s) if one.wish.last_safe_s is not None else None,
    )
