"""What a team holds now: the workers that train, and the machines that cost money."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.conf import settings
from django.db.models import F, Q

from jobs.models import Instance, Orphan, Team, Worker
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.paces import SLOW, pace_factors
from jobs.states import ATTEMPT_LIVE

SILENT_S = 20.0  # a worker says something at least every five seconds
MAX_WORKERS = 1_000
NUM_ENDED = 20
ORPHANS_FOR = dt.timedelta(days=1)  # after their end


@dataclass(frozen=True)
class WorkerLine:
    """A worker of a live attempt. `pace` is its own time for a micro-batch over the median of the others', None without one."""

    worker: Worker
    pace: float | None
    silent_s: float | None  # since its last word; None before the first

    @property
    def is_slow(self) -> bool:
        return self.pace is not None and self.pace >= SLOW

    @property
    def is_silent(self) -> bool:
        return self.silent_s is not None and self.silent_s >= SILENT_S

    @property
    def system(self) -> dict[str, Any]:
        return self.worker.system or {}


@dataclass(frozen=True)
class InstanceLine:
    """`ending_s`: since its end was asked for, while that is not confirmed; else None."""

    instance: Instance
    cost_usd: Decimal
    ending_s: float | None = None

    @property
    def is_end_late(self) -> bool:
        return self.ending_s is not None and self.ending_s > settings.END_LATE_S


@dataclass(frozen=True)
class Fleet:
    """`usd_per_hour` and `num_gpus` are over machines whose end is not confirmed; `orphans` are those of the last day."""

    workers: list[WorkerLine]
    num_workers: int
    held: list[InstanceLine]
    ended: list[InstanceLine]
    orphans: list[Orphan]
    num_gpus: int
    usd_per_hour: Decimal

    @property
    def num_slow(self) -> int:
        return sum(line.is_slow for line in self.workers)

    @property
    def num_silent(self) -> int:
        return sum(line.is_silent for line in self.workers)

    @property
    def num_end_late(self) -> int:
        return sum(line.is_end_late for line in self.held)


def fleet_of(*, team: Team, now: dt.datetime) -> Fleet:
    """Four queries, whatever the number of jobs. Slow and silent workers come first."""
    rows = Worker.objects.filter(attempt__job__team=team, attempt__status__in=ATTEMPT_LIVE)
    found = list(rows.select_related("attempt__job").order_by("attempt_id", "rank")[: MAX_WORKERS + 1])
    lines = _lines(found[:MAX_WORKERS], now)
    held = Instance.objects.filter(team=team).exclude(status="terminated").select_related("job", "attempt", "offer")
    over = Instance.objects.filter(team=team, status="terminated")
    ended = over.select_related("job", "attempt", "offer").order_by("-ended_at")
    costly = _costs(held, now)
    return Fleet(
        workers=sorted(lines, key=lambda line: (not line.is_silent, not line.is_slow)),
        num_workers=len(found) if len(found) <= MAX_WORKERS else rows.count(),
        held=costly,
        ended=_costs(ended[:NUM_ENDED], now),
        orphans=_orphans(team, now),
        num_gpus=sum(line.instance.num_gpus for line in costly),
        usd_per_hour=sum((line.instance.price_usd_per_hour for line in costly), Decimal(0)),
    )


def _lines(workers: list[Worker], now: dt.datetime) -> list[WorkerLine]:
    worlds: dict[int, list[Worker]] = defaultdict(list)
    for worker in workers:
        worlds[worker.attempt_id].append(worker)
    paces = {attempt: pace_factors(world) for attempt, world in worlds.items()}
    return [
        WorkerLine(
            worker,
            paces[worker.attempt_id].get(worker.rank),
            (now - worker.heartbeat_at).total_seconds() if worker.heartbeat_at else None,
        )
        for worker in workers
    ]


def _costs(rows: Any, now: dt.datetime) -> list[InstanceLine]:
    return [
        InstanceLine(
            row,
            instance_cost_usd(row, start=None, end=now),
            (now - row.status_at).total_seconds() if row.status == "terminating" else None,
        )
        for row in rows
    ]


def _orphans(team: Team, now: dt.datetime) -> list[Orphan]:
    """The team's, and those that nobody knows a team of; what still lives first."""
    shown = Q(ended_at__isnull=True) | Q(ended_at__gt=now - ORPHANS_FOR)
    rows = Orphan.objects.filter(shown, Q(team=team) | Q(team=None)).select_related("job")
    return list(rows.order_by(F("ended_at").desc(nulls_first=True), "-id")[:NUM_ENDED])
