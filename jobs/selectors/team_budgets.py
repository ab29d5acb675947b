"""A team's budget for a calendar month of its clock: what is spent of it, and what is kept for what runs and for what is asked for.

Spent is what every machine that has a price has cost since the month began, in every backend. Kept for a machine is what it costs
until it has saved and left, if that is ordered at the next look, and of its first minutes what is still to come: so much has to be
there before it is asked for, so that what is started is worth its start. A machine counts from the moment at which it is asked for,
with what it will cost.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from uuid import UUID

from django.conf import settings

from jobs.clusters import worker_price
from jobs.models import Instance, Job, Team
from jobs.selectors.costs import begin_of, instance_cost_usd
from jobs.selectors.spending import LOOK_S, WARN_SHARE, leave_times_s

BUDGET = "team budget"  # how every refusal begins
ZERO = Decimal(0)
# team -> beginning of the month, and what a machine has cost in it that ended then. An end may be told anew, and later.
_Ended = dict[tuple[UUID, dt.datetime | None], Decimal]
_ended: dict[UUID, tuple[dt.datetime, _Ended]] = {}


@dataclass(frozen=True)
class Month:
    """The calendar month of a zone that a moment lies in."""

    name: str  # 2026-11
    start: dt.datetime
    end: dt.datetime


def month_of(*, zone_name: str, now: dt.datetime) -> Month:
    zone = zoneinfo.ZoneInfo(zone_name)
    first = now.astimezone(zone).date().replace(day=1)
    following = (first + dt.timedelta(days=31)).replace(day=1)
    start, end = (dt.datetime.combine(day, dt.time(), tzinfo=zone).astimezone(dt.UTC) for day in (first, following))
    return Month(f"{first:%Y-%m}", start, end)


@dataclass
class Money:
    """A team's month. By job id: what its machines cost an hour, and what is kept to let them leave and for their first minutes."""

    team: Team
    month: Month
    now: dt.datetime
    spent_usd: Decimal = ZERO
    rates: dict[int, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    leaving: dict[int, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    starting: dict[int, Decimal] = field(default_factory=lambda: defaultdict(Decimal))
    jobs: dict[int, Job] = field(default_factory=dict)

    @property
    def budget_usd(self) -> Decimal | None:
        return None if self.team.budget_usd is None else Decimal(self.team.budget_usd)

    @property
    def usd_per_hour(self) -> Decimal:
        return sum(self.rates.values(), ZERO)

    @property
    def leaving_usd(self) -> Decimal:
        """What it costs until all has ended, if that is ordered at the next look."""
        return sum(self.leaving.values(), ZERO)

    @property
    def reserved_usd(self) -> Decimal:
        return self.leaving_usd + sum(self.starting.values(), ZERO)

    @property
    def left_usd(self) -> Decimal | None:
        """Of the budget, beside what is spent and kept; never below nothing."""
        return None if self.budget_usd is None else max(ZERO, self.budget_usd - self.spent_usd - self.reserved_usd)

    @property
    def spent_share(self) -> float | None:
        return float(self.spent_usd / self.budget_usd) if self.budget_usd else None

    @property
    def is_nearly_spent(self) -> bool:
        return self.budget_usd is not None and 0 < self.spent_usd >= WARN_SHARE * self.budget_usd

    @property
    def must_leave(self) -> bool:
        """Whether going on would pass the budget."""
        return (
            self.budget_usd is not None
            and self.usd_per_hour > 0
            and self.spent_usd + self.leaving_usd > self.budget_usd
        )

    @property
    def words(self) -> str:
        spent = f"${self.spent_usd:,.2f} of ${self.budget_usd:,.2f} are spent in {self.month.name}"
        return f"{BUDGET}: {spent}, ${self.reserved_usd:,.2f} are kept for what runs and is asked for"


def start_s() -> float:
    """For how long a machine has to be paid before it is asked for, beside its leaving: until the planner has looked again."""
    return float(settings.PLAN_EVERY_S + settings.PLAN_SLOT_S)


def team_money(*, team: Team, now: dt.datetime) -> Money:
    """The month of one team."""
    return moneys(teams=[team], now=now)[team.pk]


def moneys(*, teams: Iterable[Team], now: dt.datetime) -> dict[int, Money]:
    """Team id -> its month. A fixed number of queries for each team, none without a team."""
    return {team.pk: _money(team, now) for team in teams}


def _money(team: Team, now: dt.datetime) -> Money:
    month = month_of(zone_name=team.time_zone, now=now)
    money = Money(team, month, now, spent_usd=_ended_usd(team, month))
    rows = Instance.objects.filter(team=team).exclude(status="terminated").select_related("job").defer("job__report")
    machines = list(rows)
    for machine in machines:
        if machine.job is not None:
            machine.job.team = team
            money.jobs[machine.job.pk] = machine.job
    times = leave_times_s(jobs=money.jobs.values()) if money.jobs else {}
    for machine in machines:
        money.spent_usd += instance_cost_usd(machine, start=month.start, end=now)
        key, (rate, age_s) = machine.job_id or 0, _rate(machine, now)
        money.rates[key] += rate
        money.leaving[key] += _usd(rate, times.get(key, 0.0) + LOOK_S)
        if machine.status != "terminating":
            money.starting[key] += _usd(rate, max(0.0, start_s() - age_s))
    return money


def _rate(machine: Instance, now: dt.datetime) -> tuple[Decimal, float]:
    """USD an hour, and for how many seconds it has cost. A place in a cluster's queue has the price of the nodes it waits for."""
    begun = begin_of(machine)
    if not machine.offer_id and not machine.price_usd_per_hour and machine.status in ("requested", "provisioning"):
        return (start_rate(machine.job) if machine.job is not None else ZERO), 0.0
    return machine.price_usd_per_hour, (now - begun).total_seconds() if begun is not None else 0.0


def _ended_usd(team: Team, month: Month) -> Decimal:
    """What machines have cost in the month that have ended. Each is read once by a process."""
    since, known = _ended.get(team.uuid, (month.start, {}))
    if since != month.start:
        known = {}
    _ended[team.uuid] = (month.start, known)
    ended = Instance.objects.filter(team=team, status="terminated", ended_at__gt=month.start)
    ends = dict(ended.values_list("uuid", "ended_at"))
    fresh = [uuid for uuid, end in ends.items() if (uuid, end) not in known]
    rows = ended if len(fresh) > 500 else ended.filter(uuid__in=fresh)
    for machine in rows if fresh else ():
        ends[machine.uuid] = machine.ended_at
        end = machine.ended_at or machine.status_at
        known[machine.uuid, machine.ended_at] = instance_cost_usd(machine, start=month.start, end=end)
    return sum((known.get(key, ZERO) for key in ends.items()), ZERO)


def start_rate(job: Job, num_workers: int = 0) -> Decimal:
    """USD an hour for the workers of a job of fixed size, before it is known which nodes it gets."""
    return Decimal(str(worker_price(job))) * (num_workers or job.num_workers)


def start_refusal(*, job: Job, team: Team, now: dt.datetime) -> str:
    """Why the budget has no room for a start of a job of fixed size; empty where it has. Asked under the team's lock.

    Its own earlier machines are taken to be leaving.
    """
    if team.budget_usd is None or not (rate := start_rate(job)):
        return ""
    money = team_money(team=team, now=now)
    return room_refusal(money, job, rate, kept=money.reserved_usd - money.starting.get(job.pk, ZERO))


def growth_unpaid(*, job: Job, num_workers: int, now: dt.datetime) -> str:
    """Why the budget has no room for so many workers of a job of fixed size; empty where it has, or where they are no more."""
    more = start_rate(job, max(num_workers, job.num_workers)) - start_rate(job)
    if job.team.budget_usd is None or not more:
        return ""
    money = team_money(team=job.team, now=now)
    return room_refusal(money, job, more, kept=money.reserved_usd)


def machine_unpaid(*, job: Job, usd_per_hour: Decimal, now: dt.datetime) -> str:
    """Why the budget has no room for one more machine of a planned job; empty where it has. Asked under the team's lock."""
    if job.team.budget_usd is None or not usd_per_hour:
        return ""
    money = team_money(team=job.team, now=now)
    return room_refusal(money, job, usd_per_hour, kept=money.reserved_usd)


def room_refusal(money: Money, job: Job, usd_per_hour: Decimal, *, kept: Decimal) -> str:
    assert money.budget_usd is not None
    needed = _usd(usd_per_hour, start_s() + leave_times_s(jobs=[job])[job.pk] + LOOK_S)
    if money.spent_usd + kept + needed <= money.budget_usd:
        return ""
    return f"{money.words}, and a start takes ${needed:,.2f}"


def _usd(usd_per_hour: Decimal, seconds: float) -> Decimal:
    return usd_per_hour * Decimal(seconds) / 3600


def with_budget(teams: Sequence[Team]) -> list[Team]:
    """Each of them once that has a budget."""
    return list({team.pk: team for team in teams if team.budget_usd is not None}.values())
