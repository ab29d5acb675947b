"""Budgets while jobs run: said when most of one is spent, and kept, whatever the backend and whoever holds the job.

The planner keeps within a budget by what it orders; this is for jobs that nobody plans, for paused ones, and for the time between
two plans. A limit is no proposal: its order asks nobody.
"""

from __future__ import annotations

import datetime as dt

from django.conf import settings
from django.db import transaction

from jobs.errors import Conflict
from jobs.machines import ALLOCATIONS, is_planned
from jobs.models import Command, Instance, Job
from jobs.selectors.machines import target_of
from jobs.selectors.spending import Spending, leave_times_s, spendings
from jobs.services.commands import command_issue
from jobs.services.events import event_append
from jobs.services.pauses import job_hold, living
from jobs.services.plans import plan_ask, plan_change_noted
from jobs.services.stops import STOP_AGAIN, stop_order


def budgets_sweep(*, now: dt.datetime) -> int:
    """Warn of budgets that are nearly spent, and end the cost of jobs before theirs is passed. Returns how many were ended."""
    num = 0
    for one in spendings(now=now):
        try:
            if one.is_nearly_spent and one.job.budget_warned_usd != one.job.budget_usd:
                _warn(one, now)
            if one.must_leave:
                num += _planned_end(one, now) if is_planned(one.job) else _fixed_end(one, now)
        except Conflict:
            continue  # the job has moved on in the same moment; the next look is in three seconds
    return num


@transaction.atomic
def _warn(one: Spending, now: dt.datetime) -> None:
    job = one.job
    rows = Job.objects.filter(pk=job.pk, budget_usd=job.budget_usd).exclude(budget_warned_usd=job.budget_usd)
    if rows.update(budget_warned_usd=job.budget_usd):
        share = f"{100 * one.spent_usd / one.budget_usd:.0f} %" if one.budget_usd else "all"
        text = f"{job.name} has spent {share} of its budget: ${one.spent_usd:,.2f} of ${one.budget_usd:,.2f}"
        rate = f", at ${one.usd_per_hour:,.2f} an hour now." if one.usd_per_hour else "."
        _tell(one, "job.budget_warned", text + rate, now)


def _fixed_end(one: Spending, now: dt.datetime) -> bool:
    """It is paused, and its attempt saves, leaves and costs no more."""
    job, is_new = one.job, not one.job.held_for
    with transaction.atomic():
        job_hold(job=job, why=one.words, now=now)
        if is_new:
            _tell(one, "job.budget_reached", f"{job.name} stops before it passes its budget: {one.words}.", now)
    return is_new


def _planned_end(one: Spending, now: dt.datetime) -> bool:
    """Its machines are given back, as by the planner's `idle`; it waits for money."""
    text = f"{one.job.name} gives its machines back before it passes its budget: {one.words}."
    if not machines_give_back(job=one.job, why=one.words, now=now):
        return False
    _tell(one, "job.budget_reached", text, now)
    return True


def _tell(one: Spending, kind: str, text: str, now: dt.datetime) -> None:
    data = {
        "budget_usd": str(one.budget_usd),
        "spent_usd": str(round(one.spent_usd, 4)),
        "usd_per_hour": str(round(one.usd_per_hour, 4)),
    }
    event_append(team=one.job.team, job=one.job, kind=kind, subject=one.job, now=now, text=text, data=data)


@transaction.atomic
def machines_give_back(*, job: Job, why: str, now: dt.datetime) -> bool:
    """Order a planned job off all its machines, unless that is the order in force. One that failed is given again after a minute,
    and the trainer that would not leave is stopped."""
    target = target_of(job=job)
    if target is not None and target.total == 0:
        return False
    idles = Command.objects.filter(job=job, kind="idle").order_by("-id")
    last = idles.first()
    if last is not None and last.status == "failed" and not _was_overtaken(last):
        if now - last.status_at < STOP_AGAIN:
            return False
        if (attempt := living(job)) is not None:
            stop_order(attempt=attempt, reason=why, outcome="preempted", now=now)
    command_issue(
        job=job,
        kind="idle",
        key=f"idle:{job.uuid}:{idles.count()}",
        args={"spot": 0, "on_demand": 0, "reason": why},
        queue="urgent",
        now=now,
    )
    plan_change_noted(job=job, now=now)
    plan_ask(job=job, now=now, why="Its machines are given back.")
    return True


def _was_overtaken(order: Command) -> bool:
    return Command.objects.filter(job=order.job, kind__in=ALLOCATIONS, pk__gt=order.pk).exists()


def pauses_sweep(*, now: dt.datetime) -> int:
    """Paused planned jobs save and give their machines back after as long as a change of machines has to last to be worth it.

    Until then the pause may end without one. Returns how many were ordered to.
    """
    costing = Instance.objects.filter(offer__isnull=False).exclude(status__in=("terminating", "terminated"))
    paused = (
        Job.objects.filter(status="paused", instances__in=costing).select_related("team").defer("report").distinct()
    )
    jobs = [job for job in paused if is_planned(job)]
    times = leave_times_s(jobs=jobs)
    num = 0
    for job in jobs:
        rest = dt.timedelta(seconds=max(settings.PLAN_SLOT_S, 2 * times[job.pk]))
        if now - job.status_at >= rest:
            num += _pause_end(job, rest, now)
    return num


@transaction.atomic
def _pause_end(job: Job, rest: dt.timedelta, now: dt.datetime) -> bool:
    why = f"it has been paused for {rest.total_seconds():,.0f} s"
    if not machines_give_back(job=job, why=why, now=now):
        return False
    text = f"{job.name} saves and gives its machines back: {why}. They are bought again when it goes on."
    event_append(team=job.team, job=job, kind="job.idle", subject=job, now=now, text=text)
    return True
