"""Budgets: what cannot pay for a planned job even at the lowest price seen is refused before anything is bought."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from jobs.errors import Invalid
from jobs.machines import is_planned
from jobs.models import Job
from jobs.scheduler.speed import speed_of
from jobs.selectors.costs import job_costs_usd
from jobs.services.deadlines import best_pace
from jobs.services.resizes import worker_limits
from jobs.services.resources import lowest_usd_per_hour


def budget_check(*, job: Job, now: dt.datetime) -> None:
    """Raise `Invalid` for a budget that is spent, or less than the steps left cost on the fewest machines at the lowest price.

    The fewest machines are the cheapest way, the price is the lowest of the last two weeks of the machines that the job may use.
    Where no pace or no price is known nothing is refused.
    """
    if job.budget_usd is None:
        return
    spent = job_costs_usd(jobs=[job], now=now).get(job.pk, Decimal(0))
    left = float(Decimal(job.budget_usd) - spent)
    if spent and left <= 0:
        raise _refused(job, f"${spent:,.2f} are spent already; give more, or stop the job.")
    pace_s, size, whose = best_pace(job)
    price = lowest_usd_per_hour(job.config.get("resources") or {}) if is_planned(job) else None
    if pace_s is None or price is None:
        return
    fewest = worker_limits(job=job)[0]
    speed, steps_left = speed_of(measured_s={size: pace_s}), max(0, job.goal_steps - job.current_step)
    assert speed is not None
    hours = fewest * steps_left * speed.step_time_s(fewest) / 3600
    if hours * price > left:
        work = f"{steps_left:,} steps ({whose}) take {hours:,.2f} machine-hours on {fewest}, the fewest"
        bill = f"at ${price:,.4g}, the lowest price of the last two weeks, that is ${hours * price:,.2f}"
        raise _refused(job, f"{work}; {bill}, and ${left:,.2f} are left.")


def _refused(job: Job, hint: str) -> Invalid:
    return Invalid(f"The budget of {job.name} cannot pay for it.", fields={"budget_usd": [hint]})
