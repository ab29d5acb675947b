"""What an epoch found of a job, as the row and the points that pages, the API and the next epoch read."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from forecasting.outlook import Band
from jobs.models import Decision, PlanPoint, PlanState
from jobs.models.plans import WAITS_LENGTH
from jobs.scheduler.planner import PlanFacts, uses_programme
from jobs.services.plan_waits import waits_for
from jobs.services.plans import shortened

if TYPE_CHECKING:
    from jobs.services.epochs import Planned

POINTS = 400  # of a job's life, before they are spaced wider
FAR_S = 3.15e8  # ten years: what lies farther off, ahead or behind, is told as that


def state_of(one: Planned, made: list[Decision], now: dt.datetime) -> PlanState:
    """The row of the job's plan with what the epoch found. Not stored."""
    state = one.rows.state or PlanState.objects.get(job=one.rows.job)
    state.planned_at = now
    state.waits_on, words = waits_for(one, made)
    state.waits_for = shortened(words, WAITS_LENGTH)
    state.priority = one.priority.effective
    state.plan = _told(one, state.plan, now)
    return state


def _told(one: Planned, before: dict[str, Any], now: dt.datetime) -> dict[str, Any]:
    """The plan as pages, the API and the next epoch read it."""
    facts, wanted, wish = one.placed.facts, one.placed.wish, one.placed.today
    first_usd = before.get("first_cost_usd")
    if first_usd is None and wanted.cost is not None:
        first_usd = round(facts.spent_usd + wanted.cost.expected, 4)
    told: dict[str, Any] = {
        "at": now.isoformat(),
        "rule": wanted.rule,
        "sentence": wanted.sentence,
        "target": {"spot": wish.spot, "on_demand": wish.on_demand},
        "wanted": {"spot": wanted.spot, "on_demand": wanted.on_demand},
        "held": {"spot": facts.held_spot, "on_demand": facts.held_on_demand},
        "limits": {"n_min": facts.n_min, "n_max": facts.n_max},
        "held_back": one.placed.held_back,
        "refused": one.no_words[one.withheld] if one.withheld else "",
        "priority": one.priority.as_json(),
        "fall_per_usd": one.fall_per_usd,
        "lacks": one.lacks,
        "gave_way": one.gave_way,
        "followed": {**asdict(facts.followed), "words": facts.followed.words, "outlook_of": wanted.outlook_of}
        if uses_programme(facts)
        else None,
        "forecasts": [{**asdict(use), "words": use.words} for use in facts.forecasts],
        "cost_usd": _band(wanted.cost, facts.spent_usd),
        "finish_at": _moments(wanted.finish, now),
        "chance": wanted.chance,
        "last_safe_at": _moment(wanted.last_safe_s, now),
        "spent_usd": round(facts.spent_usd, 4),
        "first_cost_usd": first_usd,
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
    at = moment_of(seconds, now)
    return None if at is None else at.isoformat()


def moment_of(seconds: float | None, now: dt.datetime) -> dt.datetime | None:
    """So many seconds from now, as far as dates go: an end that never comes, or a safe moment before all time, is far off."""
    return None if seconds is None else now + dt.timedelta(seconds=max(-FAR_S, min(seconds, FAR_S)))


def point_of(one: Planned, state: PlanState, now: dt.datetime) -> PlanPoint | None:
    """A point of the curves, spaced wider the longer the job has been going."""
    job, facts, wish = one.rows.job, one.placed.facts, one.placed.wish
    last = state.plan.get("point_at")
    age_s = (now - (job.submitted_at or job.created_at)).total_seconds()
    if last and (now - dt.datetime.fromisoformat(last)).total_seconds() < age_s / POINTS:
        return None
    state.plan["point_at"] = now.isoformat()
    finish = wish.finish
    return PlanPoint(
        job=job,
        at=now,
        step=job.current_step,
        spent_usd=facts.spent_usd,
        spot=facts.held_spot,
        on_demand=facts.held_on_demand,
        finish_at=moment_of(finish.expected if finish else None, now),
        cost_usd=facts.spent_usd + wish.cost.expected if wish.cost else None,
        chance=wish.chance,
        last_safe_at=moment_of(wish.last_safe_s, now),
    )
