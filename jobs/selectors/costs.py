"""What machines have cost, from the instance records: each price for as long as it was in force, by the second."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator
from decimal import Decimal

from django.db.models import Q

from jobs.models import Instance, Job, Team

MICROSECOND = dt.timedelta(microseconds=1)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Stretch = tuple[dt.datetime, dt.datetime, Decimal]


def begin_of(instance: Instance) -> dt.datetime | None:
    """When it began to cost: a bought machine when the provider started it (None before), another with its request."""
    return instance.started_at or (None if instance.offer_id else instance.created_at)


def priced(instance: Instance, begun: dt.datetime, ended: dt.datetime) -> Iterator[Stretch]:
    """(from, to, USD per hour) of the machine's prices within a time in which it cost."""
    starts = [EPOCH + dt.timedelta(microseconds=round(float(at) * 1e6)) for at, _ in instance.prices]
    prices = [Decimal(str(price)) for _, price in instance.prices]
    if not prices:
        starts, prices = [begun], [instance.price_usd_per_hour]
    starts[0] = min(starts[0], begun)
    for first, last, price in zip(starts, [*starts[1:], ended], prices, strict=True):
        if max(first, begun) < min(last, ended):
            yield max(first, begun), min(last, ended), price


def cost_between_usd(instance: Instance, begun: dt.datetime, ended: dt.datetime) -> Decimal:
    """What a time in which it cost was worth."""
    return sum((price * hours(first, last) for first, last, price in priced(instance, begun, ended)), Decimal(0))


def hours(begun: dt.datetime, ended: dt.datetime) -> Decimal:
    """Exact, to the microsecond."""
    return Decimal((ended - begun) // MICROSECOND) / 1_000_000 / 3600


def instance_cost_usd(instance: Instance, *, start: dt.datetime | None, end: dt.datetime) -> Decimal:
    """What an instance cost between `start` (or its beginning) and `end`; it costs until its end is confirmed."""
    begun = begin_of(instance)
    if begun is None:
        return Decimal(0)
    return cost_between_usd(instance, max(begun, start or begun), min(instance.ended_at or end, end))


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
