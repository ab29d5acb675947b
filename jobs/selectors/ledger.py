"""The ledger of a team: what its machines cost, on which day, for which job, and how much of it did no lasting work.

A machine costs from its request (a bought one from its start at the provider) until its end is confirmed, each price for as
long as it was in force. Its time is told apart by what its attempts did: *starting* before the process group stood, *lost* for
steps that a later attempt did again, *idle* after an attempt had ended, and *work* for the rest. The parts of a machine add up to
its cost.
"""

from __future__ import annotations

import datetime as dt
import zoneinfo
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django.db.models import Q

from jobs.models import Attempt, Instance, Job, Placement, Team
from jobs.selectors.branches import segments_kept
from jobs.selectors.costs import begin_of, cost_between_usd, hours

KINDS = ("spot", "on_demand")
PARTS = ("work", "starting", "lost", "idle")
ZERO = Decimal(0)


@dataclass
class Sums:
    """USD by kind of machine and by part."""

    by_kind: dict[str, Decimal] = field(default_factory=lambda: dict.fromkeys(KINDS, ZERO))
    by_part: dict[str, Decimal] = field(default_factory=lambda: dict.fromkeys(PARTS, ZERO))

    @property
    def total(self) -> Decimal:
        return sum(self.by_part.values(), ZERO)

    @property
    def waste(self) -> Decimal:
        return self.total - self.by_part["work"]

    @property
    def waste_share(self) -> float | None:
        return float(self.waste / self.total) if self.total else None

    def add(self, kind: str, part: str, usd: Decimal) -> None:
        self.by_kind[kind] += usd
        self.by_part[part] += usd


@dataclass
class DaySums(Sums):
    day: dt.date = dt.date.min


@dataclass
class JobSums(Sums):
    """`gpu_hours` counts every GPU of every machine; `budget_share` is of the whole budget, over the period only."""

    job: Job | None = None
    gpu_hours: float = 0.0

    @property
    def budget_share(self) -> float | None:
        budget = self.job.budget_usd if self.job else None
        return float(self.total / budget) if budget else None

    @property
    def baselines(self) -> list[dict[str, Any]]:
        """What other policies would have paid for the whole of a planned job that has ended, as its report keeps it."""
        return (self.job.report.get("baselines") or []) if self.job else []

    @property
    def whole_usd(self) -> float | None:
        """What the whole of an ended job has cost, as its report says: the period may hold a part of it."""
        return (self.job.report.get("cost") or {}).get("total_usd") if self.job else None


@dataclass
class Ledger:
    """Costs between `start` and `end`. Days are those of the team's clock, without gaps; jobs by falling cost."""

    start: dt.datetime
    end: dt.datetime
    sums: Sums
    days: list[DaySums]
    jobs: list[JobSums]


def ledger_of(*, team: Team, start: dt.datetime, end: dt.datetime) -> Ledger:
    """Three queries, and one more where machines were bought. `end` is at most now: a machine that runs on costs up to there."""
    alive = Q(ended_at__isnull=True) | Q(ended_at__gt=start)
    rows = Instance.objects.filter(alive, team=team).exclude(started_at__gte=end).select_related("job", "attempt")
    machines = list(rows)
    lost = _lost_shares({row.job_id for row in machines if row.job_id})
    uses = attempts_by_machine(machines)
    zone = zoneinfo.ZoneInfo(team.time_zone)
    ledger = Ledger(start, end, Sums(), [DaySums(day=day) for day in _days(start, end, zone)], [])
    days = {sums.day: sums for sums in ledger.days}
    jobs: dict[int | None, JobSums] = defaultdict(JobSums)
    for machine in machines:
        line = jobs[machine.job_id]
        line.job = machine.job
        for part, begun, ended, share in stretches(machine, start, end, lost, uses.get(machine.pk)):
            for day, first, last in _by_day(begun, ended, zone):
                usd = cost_between_usd(machine, first, last) * Decimal(share)
                for sums in (ledger.sums, days[day], line):
                    sums.add(machine.kind if machine.kind in KINDS else "on_demand", part, usd)
                line.gpu_hours += machine.num_gpus * float(hours(first, last)) * share
    ledger.jobs = sorted(jobs.values(), key=lambda line: (-line.total, line.job.name if line.job else ""))
    return ledger


def stretches(
    machine: Instance,
    start: dt.datetime,
    end: dt.datetime,
    lost: dict[int, float],
    attempts: Sequence[Attempt] | None = None,
) -> Iterator[tuple[str, dt.datetime, dt.datetime, float]]:
    """(part, from, to, share of it) of a machine's time within the period; shares of the same time add up to 1.

    `lost`: attempt -> share of its steps that were done again. Work is taken to be lost evenly over an attempt's time.
    `attempts`: those that ran on a bought machine, one after the other; by default the machine's only one.
    """
    begun = begin_of(machine)
    if begun is None:
        return
    begun, ended = max(begun, start), min(machine.ended_at or end, end)
    if attempts is None:
        attempts = [machine.attempt] if machine.attempt else []
    at, part = begun, "starting"
    for attempt in attempts:
        share = lost.get(attempt.pk, 0.0)
        begins = at if part == "starting" else _within(attempt.created_at, at, ended)
        works_from = _within(attempt.running_at or attempt.ended_at or ended, begins, ended)
        works_until = _within(attempt.ended_at or ended, works_from, ended)
        yield from _told(
            ("idle", at, begins, 1.0),
            ("starting", begins, works_from, 1.0),
            ("work", works_from, works_until, 1.0 - share),
            ("lost", works_from, works_until, share),
        )
        at, part = works_until, "idle"
    yield from _told(("idle", at, ended, 1.0))


def _within(moment: dt.datetime, low: dt.datetime, high: dt.datetime) -> dt.datetime:
    return max(low, min(moment, high))


def _told(
    *parts: tuple[str, dt.datetime, dt.datetime, float],
) -> Iterator[tuple[str, dt.datetime, dt.datetime, float]]:
    """Those that hold anything."""
    return (part for part in parts if part[1] < part[2] and part[3])


def attempts_by_machine(machines: Sequence[Instance]) -> dict[int, list[Attempt]]:
    """Bought machine -> the attempts that ran on it, in their order."""
    bought: dict[int, list[Attempt]] = {machine.pk: [] for machine in machines if machine.offer_id}
    if bought:
        rows = Placement.objects.filter(instance__in=bought).select_related("attempt").order_by("attempt__fence")
        for placement in rows:
            bought[placement.instance_id].append(placement.attempt)
    return bought


def _lost_shares(jobs: set[int]) -> dict[int, float]:
    """Attempt -> share of its steps that are on no surviving branch: a later attempt did them again."""
    by_job: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in Attempt.objects.filter(job_id__in=jobs).order_by("fence"):
        by_job[attempt.job_id].append(attempt)
    found: dict[int, float] = {}
    for attempts in by_job.values():
        kept = {segment.attempt_id: segment.stop - segment.start for segment in segments_kept(attempts)}
        for attempt in attempts:
            done = attempt.last_step + 1 - attempt.start_step
            if done > 0:
                found[attempt.pk] = 1 - kept.get(attempt.pk, 0) / done
    return found


def _by_day(
    begun: dt.datetime, ended: dt.datetime, zone: zoneinfo.ZoneInfo
) -> Iterator[tuple[dt.date, dt.datetime, dt.datetime]]:
    """(day of the zone, from, to) of a stretch; a day may have 23 or 25 hours."""
    while begun < ended:
        day = begun.astimezone(zone).date()
        cut = min(ended, _midnight(day + dt.timedelta(days=1), zone))
        yield day, begun, cut
        begun = cut


def _days(start: dt.datetime, end: dt.datetime, zone: zoneinfo.ZoneInfo) -> Iterator[dt.date]:
    day = start.astimezone(zone).date()
    while _midnight(day, zone) < end:
        yield day
        day += dt.timedelta(days=1)


def _midnight(day: dt.date, zone: zoneinfo.ZoneInfo) -> dt.datetime:
    return dt.datetime.combine(day, dt.time(), tzinfo=zone).astimezone(dt.UTC)
