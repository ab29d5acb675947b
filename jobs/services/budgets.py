"""Budgets: what cannot pay for a job even at the lowest price known is refused before anything is started or bought."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from jobs.clusters import lowest_worker_price, on_cluster
from jobs.errors import Invalid
from jobs.machines import is_planned
from jobs.models import Job
from jobs.scheduler.speed import speed_of
from jobs.selectors.costs import job_costs_usd
from jobs.services.deadlines import best_pace
from jobs.services.resizes import worker_limits
from jobs.services.resources import lowest_usd_per_hour


def budget_check(*, job: Job, now: dt.datetime) -> None:
    """Raise `Invalid` for a budget that is spent, or less than what the steps left cost at the lowest price.

    A planned job is taken to run on its fewest machines, which is the cheapest way, at the lowest price of the last two weeks of
    those that it may use; a job of fixed size on its workers, at the price that the operator says of one. Where no pace or no price
    is known nothing is refused.
    """
    if job.budget_usd is None:
        return
    spent = job_costs_usd(jobs=[job], now=now).get(job.pk, Decimal(0))
    left = float(Decimal(job.budget_usd) - spent)
    if spent and left <= 0:
        raise _refused(job, f"${spent:,.2f} are spent already; give more, or stop the job.")
    pace_s, size, whose = best_pace(job)
    num, price, on_what, of_what = _cheapest(job)
    speed = speed_of(measured_s={size: pace_s}) if pace_s is not None else None
    if speed is None or not price:
        return
    steps_left = max(0, job.goal_steps - job.current_step)
    hours = num * steps_left * speed.step_time_s(num) / 3600
    if hours * price > left:
        work = f"{steps_left:,} steps ({whose}) take {hours:,.2f} {on_what}"
        bill = f"at ${price:,.4g}, {of_what}, that is ${hours * price:,.2f}"
        raise _refused(job, f"{work}; {bill}, and ${left:,.2f} are left.")


def _cheapest(job: Job) -> tuple[int, float | None, str, str]:
    """The number of machines and the USD an hour of one, None where it is not known; on what, and whose price that is."""
    if is_planned(job):
        fewest, price = worker_limits(job=job)[0], lowest_usd_per_hour(job.config.get("resources") or {})
        return fewest, price, f"machine-hours on {fewest}, the fewest", "the lowest price of the last two weeks"
    whose = f"the price of a worker on {job.backend}" if on_cluster(job) else "the price of a worker on this machine"
    return job.num_workers, lowest_worker_price(job), f"worker-hours on {job.num_workers}", whose


def _refused(job: Job, hint: str) -> Invalid:
    return Invalid(f"The budget of {job.name} cannot pay for it.", fields={"budget_usd": [hint]})
