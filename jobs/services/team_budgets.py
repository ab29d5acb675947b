"""Budgets of teams while their jobs run: said when most of one is spent, and kept. An order that keeps a limit asks nobody."""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from jobs.errors import Conflict
from jobs.machines import is_planned
from jobs.models import Command, Job, PlanState, Team
from jobs.selectors.quotas import TO_PLAN
from jobs.selectors.team_budgets import BUDGET, Money, team_money
from jobs.services.events import event_append
from jobs.services.pauses import living
from jobs.services.spending import machines_give_back
from jobs.services.stops import stop_order


def team_budgets_sweep(*, now: dt.datetime) -> int:
    """Warn of budgets that are nearly spent, and end the cost of a team's jobs before its budget is passed. Returns how many jobs.

    All leave: each second that one stays is paid out of what the others need to save.
    """
    num = 0
    for team in Team.objects.filter(budget_usd__isnull=False).order_by("pk"):
        money = team_money(team=team, now=now)
        if money.is_nearly_spent:
            _warn(money, now)
        if money.must_leave:
            ended = [job for job in money.jobs.values() if money.rates[job.pk] and _ends(job, money, now)]
            if ended:
                names = ", ".join(job.name for job in ended)
                text = f"{names} save and leave before {team.name} passes its budget: {money.words}."
                _tell(money, "team.budget_reached", text, now)
            num += len(ended)
    return num


@transaction.atomic
def _warn(money: Money, now: dt.datetime) -> None:
    """Once for each month and budget."""
    team = money.team
    mark = f"{money.month.name} of {money.budget_usd}"
    if (
        not Team.objects.filter(pk=team.pk, budget_usd=team.budget_usd)
        .exclude(budget_warned_for=mark)
        .update(budget_warned_for=mark)
    ):
        return
    share = f"{100 * money.spent_share:.0f} %" if money.spent_share is not None else "all"
    spent = f"${money.spent_usd:,.2f} of ${money.budget_usd:,.2f}"
    rate = f", at ${money.usd_per_hour:,.2f} an hour now." if money.usd_per_hour else "."
    _tell(
        money,
        "team.budget_warned",
        f"{team.name} has spent {share} of its budget for {money.month.name}: {spent}{rate}",
        now,
    )


def _ends(job: Job, money: Money, now: dt.datetime) -> bool:
    """Have it save and leave; it comes back by itself with more budget, or in the next month."""
    try:
        if is_planned(job):
            return machines_give_back(job=job, why=money.words, now=now)
        attempt = living(job)
        if attempt is None:
            return False
        before = Command.objects.filter(job=job, kind="stop").count()
        with transaction.atomic():
            stop_order(attempt=attempt, reason=money.words, outcome="preempted", now=now)
        return Command.objects.filter(job=job, kind="stop").count() > before
    except Conflict:
        return False  # it has moved on in the same moment; the next look is in three seconds


def _tell(money: Money, kind: str, text: str, now: dt.datetime) -> None:
    data = {
        "month": money.month.name,
        "budget_usd": str(money.budget_usd),
        "spent_usd": str(round(money.spent_usd, 4)),
        "reserved_usd": str(round(money.reserved_usd, 4)),
        "usd_per_hour": str(round(money.usd_per_hour, 4)),
    }
    event_append(team=money.team, kind=kind, subject=money.team, now=now, text=text, data=data)


def money_came(*, team: Team, now: dt.datetime) -> None:
    """The budget has changed: whoever waits for money is looked at at once."""
    waiting = PlanState.objects.filter(job__team=team, job__status__in=TO_PLAN, waits_on="budget", due_at__gt=now)
    waiting.update(due_at=now, why="The budget of the team has changed.")
    launches = Command.objects.filter(job__team=team, kind="launch", status="issued", error__startswith=BUDGET)
    launches.filter(due_at__gt=now).update(due_at=now)
