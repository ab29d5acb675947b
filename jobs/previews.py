"""What a job would take before it is started, whichever way its machines come."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import replace
from statistics import NormalDist

from forecasting.outlook import Band
from jobs.epoch import epoch_read, frame_of
from jobs.machines import is_planned
from jobs.models import Job
from jobs.plan_facts import facts_of, past_read
from jobs.priorities import priorities_of
from jobs.scheduler.placing import Frame, Placed, placed
from jobs.scheduler.planner import PlanFacts, Wish, allocation_words, uses_programme
from jobs.scheduler.wishes import wishes
from jobs.selectors.planning import planned_jobs
from jobs.selectors.plans import JobPlan, job_plan
from jobs.selectors.promises import job_promises
from jobs.selectors.team_budgets import Money, team_money
from jobs.services.plan_states import moment_of


def job_preview(*, job: Job, now: dt.datetime) -> JobPlan:
    """Time, cost and chance: by the planner on the market of now for a planned job, else by the pace of earlier jobs."""
    plan = job_plan(job=job, now=now)
    if is_planned(job):
        _plan_anew(plan, job, now)
    plan.reasons += job_promises(job=job)
    if job.team.budget_usd is not None:
        plan.reasons.append(_month_words(team_money(team=job.team, now=now)))
    return plan


def _month_words(money: Money) -> str:
    return (
        f"Of its team's ${money.budget_usd:,.2f} for {money.month.name} ${money.left_usd:,.2f} are left beside what is spent and "
        "what is kept for what runs; what does not fit waits."
    )


def _plan_anew(plan: JobPlan, job: Job, now: dt.datetime) -> None:
    """As the next epoch would plan it, on the market of now, within what the jobs before it leave of spot and quota."""
    others = [other for other in planned_jobs() if other.pk != job.pk]
    epoch = epoch_read(now=now, jobs=[*others, job])
    rows = epoch.rows[job.pk]
    facts = past_read(epoch, facts_of(epoch, rows))
    frame = frame_of(epoch, rows, facts, priorities_of(epoch, {job.pk: facts})[job.pk].effective, is_urgent=False)
    facts, quota = _within_quota(facts, frame)
    one = placed(facts, *wishes([facts], epoch.markets, now.timestamp())[0], frame)
    _take_over(plan, job, one, quota, now)


def _within_quota(facts: PlanFacts, frame: Frame) -> tuple[PlanFacts, str]:
    """The job as large as the quota lets it become, and that in words; as it is where the quota leaves it nothing or enough."""
    left = frame.machines_left
    if left is None or not facts.n_min <= left < facts.n_max:
        return facts, ""
    return replace(facts, n_max=left), f"{frame.quota}: planned with {left} of {facts.n_max} machines at most."


def _take_over(plan: JobPlan, job: Job, one: Placed, quota: str, now: dt.datetime) -> None:
    """The planner's numbers in place of those for a fixed number of workers."""
    facts, wish = one.facts, _begun_with(one)
    plan.is_planned, plan.first_spot, plan.first_on_demand = True, wish.spot, wish.on_demand
    plan.worker_hours = plan.deadline_margin_s = None
    band, finish = wish.cost, wish.finish
    plan.cost_usd, plan.cost_low_usd, plan.cost_high_usd = (
        (band.expected, band.low, band.high) if band else (None, None, None)
    )
    plan.duration_s, plan.duration_low_s, plan.duration_high_s = (
        (finish.expected, finish.low, finish.high) if finish else (None, None, None)
    )
    plan.finish_at = moment_of(finish.expected if finish else None, now)
    if finish is not None and facts.time_left_s is not None:
        plan.deadline_margin_s = facts.time_left_s - finish.expected
    plan.deadline_chance = wish.chance
    left_usd = max(0.0, facts.budget_usd - facts.spent_usd) if facts.budget_usd is not None else None
    plan.last_safe_at = moment_of(wish.last_safe_s, now)
    plan.within_budget = band.high <= left_usd if band and left_usd is not None else None
    plan.reasons = [plan.reasons[0], _first_words(wish, one.held_back)]
    plan.reasons += [words for words in (quota, _begun(wish.sentence) if not one.held_back else "") if words]
    if band is not None and left_usd is not None:
        _within_budget(plan, band, left_usd)
    if uses_programme(facts):
        plan.policy = facts.followed.words
        plan.reasons.append(f"Decided by {plan.policy}.")
    plan.reasons += [f"{use.words}." for use in facts.forecasts]
    if facts.speed is not None:
        step = facts.speed.step_time_s(facts.n_max)
        plan.reasons.append(f"{step:.3g} s a step with {facts.n_max} machines, by earlier attempts or the job file.")


def _begun_with(one: Placed) -> Wish:
    """What it would hold now once what has to be asked is approved. On standby nothing is bought, only asked."""
    return one.wish if one.ask is not None and not one.ask.standby else one.today


def _within_budget(plan: JobPlan, cost: Band, left_usd: float) -> None:
    """A job stops at its budget: it makes the deadline at most as often as the budget pays for it."""
    pays = share_up_to(cost, left_usd)
    if plan.deadline_chance is None or pays >= plan.deadline_chance:
        return
    plan.deadline_chance = pays
    plan.reasons.append(
        f"The ${left_usd:,.2f} that its budget has left pay for it with {pays:.0%}, by the range of its cost; at it, it stops."
    )


def share_up_to(band: Band, value: float) -> float:
    """The share of a band below a value, with a normal tail to each side of its middle."""
    end = band.high if value > band.expected else band.low
    spread = abs(end - band.expected) / NormalDist().inv_cdf(0.9)
    if spread <= 0 or not math.isfinite(spread):
        return float(value >= band.expected)
    return NormalDist(band.expected, spread).cdf(value)


def _begun(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


def _first_words(wish: Wish, held_back: str) -> str:
    why = held_back.rstrip(".")
    if not wish.size:
        return f"Now it would wait: {why}." if why else "Now it would wait."
    return f"Now it would begin with {allocation_words(wish.spot, wish.on_demand)}{f': {why}' if why else ''}."
