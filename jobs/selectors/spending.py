"""What active jobs have spent and spend now, and whether their budgets still pay for more than saving and leaving."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median
from uuid import UUID

from django.conf import settings
from django.db.models import Count, Exists, Max, OuterRef, Q

from jobs.clusters import worker_price
from jobs.machines import is_planned
from jobs.models import Attempt, Instance, Job
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.graces import job_graces_s
from jobs.states import JOB_ACTIVE

WARN_SHARE = Decimal("0.8")  # of the budget
LEAVE_S = 60.0  # until the job itself has shown how long a change takes
CONFIRM_S = 15.0  # after the grace, until the backend has confirmed the end
Ends = tuple[int, dt.datetime | None]
LOOK_S = 6.0  # two periods of the sweep: one may be late
# Job -> (machines that have ended and the last of their ends, what they have cost): with these two that changes, too.
_ended: dict[UUID, tuple[Ends, Decimal]] = {}


@dataclass(frozen=True)
class Spending:
    """One job with a budget. `usd_per_hour`: of what costs now, or, of a job of fixed size that runs on nothing, of its start."""

    job: Job
    spent_usd: Decimal
    usd_per_hour: Decimal
    leave_s: float

    @property
    def budget_usd(self) -> Decimal:
        assert self.job.budget_usd is not None
        return Decimal(self.job.budget_usd)

    @property
    def reserve_usd(self) -> Decimal:
        """What it costs until all has ended, if that is ordered at the next look."""
        return self.usd_per_hour * Decimal(self.leave_s + LOOK_S) / 3600

    @property
    def is_nearly_spent(self) -> bool:
        return self.spent_usd > 0 and self.spent_usd >= WARN_SHARE * self.budget_usd

    @property
    def must_leave(self) -> bool:
        """Whether going on would pass the budget."""
        return self.usd_per_hour > 0 and self.spent_usd + self.reserve_usd > self.budget_usd

    @property
    def words(self) -> str:
        spent = f"${self.spent_usd:,.2f} of ${self.budget_usd:,.2f} are spent"
        return f"budget: {spent}, and saving and leaving may take ${self.reserve_usd:,.2f}"


def spendings(*, now: dt.datetime) -> list[Spending]:
    """Every active job that has a budget and costs, or waits for a launch of its own. Five queries, one more for new ends."""
    costs = Exists(Instance.objects.filter(job=OuterRef("pk")).exclude(status="terminated"))
    waits = Q(status__in=("queued", "recovering"), plan_state__isnull=True)
    jobs = Job.objects.filter(costs | waits, status__in=JOB_ACTIVE, budget_usd__isnull=False)
    found = list(jobs.select_related("team").defer("report").order_by("pk"))
    kept = {job.uuid for job in found}
    for gone in set(_ended) - kept:
        _ended.pop(gone, None)
    return _spendings(found, now)


def spending_of(*, job: Job, now: dt.datetime) -> Spending:
    """The same of one job with a budget."""
    return _spendings([job], now)[0]


def _spendings(jobs: Sequence[Job], now: dt.datetime) -> list[Spending]:
    spent = _ended_usd(jobs)
    rates: dict[int, Decimal] = defaultdict(Decimal)
    for machine in Instance.objects.filter(job__in=[job.pk for job in jobs]).exclude(status="terminated"):
        spent[machine.job_id or 0] += instance_cost_usd(machine, start=None, end=now)
        rates[machine.job_id or 0] += machine.price_usd_per_hour
    for job in jobs:
        if not rates[job.pk] and not is_planned(job):
            rates[job.pk] = Decimal(str(worker_price(job))) * job.num_workers
    times = leave_times_s(jobs=[job for job in jobs if rates[job.pk]])
    return [Spending(job, spent[job.pk], rates[job.pk], times.get(job.pk, LEAVE_S)) for job in jobs]


def leave_times_s(*, jobs: Iterable[Job]) -> dict[int, float]:
    """Job id -> seconds that saving and leaving may take: its grace, or what a start of it takes, as that moves the same state.

    Two queries.
    """
    by_id = {job.pk: job for job in jobs}
    rows = Attempt.objects.filter(job__in=by_id, running_at__isnull=False).order_by()
    starts: dict[int, list[float]] = defaultdict(list)
    for pk, made, ran in rows.values_list("job_id", "created_at", "running_at"):
        starts[pk].append((ran - made).total_seconds() if ran else 0.0)
    shortest = {pk: min(LEAVE_S, settings.PLAN_SLOT_S) if is_planned(job) else LEAVE_S for pk, job in by_id.items()}
    graces = job_graces_s(jobs=by_id.values())
    return {
        pk: max(
            least,
            median(starts[pk]) if starts[pk] else 0.0,
            graces[pk] + CONFIRM_S if not is_planned(by_id[pk]) else 0.0,
        )
        for pk, least in shortest.items()
    }


def _ended_usd(jobs: Sequence[Job]) -> dict[int, Decimal]:
    """Job id -> what its ended machines have cost; machines are read only where another has ended."""
    by_id = {job.pk: job for job in jobs}
    ended = Instance.objects.filter(status="terminated")
    counted = ended.filter(job__in=by_id).order_by().values_list("job_id").annotate(n=Count("id"), last=Max("ended_at"))
    ends: dict[int, Ends] = {pk or 0: (num, last) for pk, num, last in counted}
    stale = [pk for pk, each in ends.items() if _ended.get(by_id[pk].uuid, (None,))[0] != each]
    fresh: dict[int, Decimal] = defaultdict(Decimal)
    for machine in ended.filter(job__in=stale) if stale else ():
        fresh[machine.job_id or 0] += instance_cost_usd(machine, start=None, end=machine.ended_at or machine.status_at)
    for pk in stale:
        _ended[by_id[pk].uuid] = (ends[pk], fresh[pk])
    found: dict[int, Decimal] = defaultdict(Decimal)
    return found | {pk: _ended[by_id[pk].uuid][1] for pk in ends}
