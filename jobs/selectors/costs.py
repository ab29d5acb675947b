"""What machines have cost, from the instance records."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from django.db.models import Q

from jobs.models import Instance, Job, Team


def instance_cost_usd(instance: Instance, *, start: dt.datetime | None, end: dt.datetime) -> Decimal:
    """What an instance cost between `start` (or its beginning) and `end`; it costs until its end is confirmed."""
    begun = max(filter(None, (instance.started_at or instance.created_at, start)))
    ended = min(instance.ended_at or end, end)
    seconds = max(0.0, (ended - begun).total_seconds())
    return instance.price_usd_per_hour * Decimal(seconds) / 3600


def job_costs_usd(*, jobs: Iterable[Job], now: dt.datetime) -> dict[int, Decimal]:
    """Job id -> what its instances have cost so far. One query."""
    spent: dict[int, Decimal] = defaultdict(Decimal)
    for instance in Instance.objects.filter(job__in=[job.pk for job in jobs]):
        spent[instance.job_id or 0] += instance_cost_usd(instance, start=None, end=now)
    return dict(spent)


def team_cost_usd(*, team: Team, start: dt.datetime, now: dt.datetime) -> Decimal:
    """What the team's instances have cost since `start`."""
    alive = Q(ended_at__isnull=True) | Q(ended_at__gte=start)
    rows = Instance.objects.filter(alive, team=team)
    return sum((instance_cost_usd(row, start=start, end=now) for row in rows), Decimal(0))
