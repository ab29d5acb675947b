"""What a job would take before it is started, whichever way its machines come."""

from __future__ import annotations

import datetime as dt

from jobs.epoch import epoch_read
from jobs.machines import is_planned
from jobs.models import Job
from jobs.plan_facts import facts_of, past_read
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
    """As the next epoch would plan it, on the market of now."""
    others = [other for other in planned_jobs() if other.pk != job.pk]
    epoch = epoch_read(now=now, jobs=[*others, job])
    facts = past_read(epoch, facts_of(epoch, epoch.rows[job.pk]))
    _, wish = wishes([facts], epoch.markets, now.timestamp())[0]
    _take_over(plan, job, facts, wish, now)


def _take_over(plan: JobPlan, job: Job, facts: PlanFacts, wish: Wish, now: dt.datetime) -> None:
    """The planner's numbers in place of those for a fixed number of workers."""
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
    plan.last_safe_at = moment_of(wish.last_safe_s, now)
    plan.within_budget = band.high <= float(job.budget_usd) if band and job.budget_usd is not None else None
    plan.reasons = [plan.reasons[0], _first_words(wish), wish.sentence]
    if uses_programme(facts):
        plan.policy = facts.followed.words
        plan.reasons.append(f"Decided by {plan.policy}.")
    plan.reasons += [f"{use.words}." for use in facts.forecasts]
    if facts.speed is not None:
        step = facts.speed.step_time_s(facts.n_max)
        plan.reasons.append(f"{step:.3g} s a step with {facts.n_max} machines, by earlier attempts or the job file.")


def _first_words(wish: Wish) -> str:
    return (
        f"Now it would begin with {allocation_words(wish.spot, wish.on_demand)}." if wish.size else "Now it would wait."
    )
