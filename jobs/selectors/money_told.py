"""A team's month as people see it: with what it is expected to have cost when it ends."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from jobs.models import Job, PlanState, Team
from jobs.selectors.progress import progresses
from jobs.selectors.team_budgets import Money, Month, team_money


@dataclass(frozen=True)
class MoneyTold:
    """USD. `forecast_usd`: what is spent, and what costs now goes on until its job is expected to end, at most to the month's end.

    Jobs that will be added are not known, and neither is what a plan will buy later; a job whose end is not in sight runs on.
    """

    month: Month
    budget_usd: Decimal | None
    spent_usd: Decimal
    reserved_usd: Decimal
    left_usd: Decimal | None
    usd_per_hour: Decimal
    forecast_usd: Decimal

    @property
    def spent_share(self) -> float | None:
        return float(self.spent_usd / self.budget_usd) if self.budget_usd else None

    @property
    def kept_share(self) -> float | None:
        """Of the budget, spent and kept together, at most 1."""
        return min(1.0, float((self.spent_usd + self.reserved_usd) / self.budget_usd)) if self.budget_usd else None

    @property
    def is_over(self) -> bool:
        return self.budget_usd is not None and self.forecast_usd > self.budget_usd


def team_money_told(*, team: Team, now: dt.datetime) -> MoneyTold:
    money = team_money(team=team, now=now)
    return MoneyTold(
        money.month, money.budget_usd, money.spent_usd, money.reserved_usd, money.left_usd, money.usd_per_hour,
        money.spent_usd + _still_to_come(money),
    )  # fmt: skip


def _still_to_come(money: Money) -> Decimal:
    ends = _ends(money.jobs.values(), money.now)
    total = Decimal(0)
    for pk, rate in money.rates.items():
        end = max(money.now, min(money.month.end, ends.get(pk, money.month.end)))
        total += rate * Decimal((end - money.now).total_seconds()) / 3600
    return total


def _ends(jobs: Iterable[Job], now: dt.datetime) -> dict[int, dt.datetime]:
    """Job id -> its expected end: by its newest plan, else by its pace; without those that nothing is known of."""
    jobs = list(jobs)
    found = {pk: one.finish_at for pk, one in progresses(jobs=jobs, now=now).items() if one.finish_at is not None}
    for pk, plan in PlanState.objects.filter(job__in=jobs).values_list("job_id", "plan"):
        if told := (plan.get("finish_at") or {}).get("expected"):
            found[pk] = dt.datetime.fromisoformat(told)
    return found
