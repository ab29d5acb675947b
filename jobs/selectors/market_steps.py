"""An offer's past as steps: a quote holds until the next one, except where nobody was listening."""

from __future__ import annotations

import bisect
import datetime as dt
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from django.db.models import Max

from jobs.models import FeedGap, FeedState, Offer, Quote

Name = Literal["price", "count"]
Gap = tuple[dt.datetime, dt.datetime]
# An offer whose feed is gone, or that came from a file, is taken as known for so long after its last quote.
FILE_PATIENCE = dt.timedelta(hours=1)


@dataclass
class Steps:
    """Moments and values of each line, ascending; `gaps` are times in which neither is known."""

    price: list[tuple[dt.datetime, float]] = field(default_factory=list)
    count: list[tuple[dt.datetime, float]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    until: dt.datetime | None = None

    def at(self, name: str, moment: dt.datetime) -> float | None:
        """The value in force, or None before the first quote, in a gap, and after what is known."""
        line: list[tuple[dt.datetime, float]] = getattr(self, name)
        if self.until is None or moment > self.until or any(start < moment < end for start, end in self.gaps):
            return None
        index = bisect.bisect_right(line, moment, key=lambda row: row[0]) - 1
        return line[index][1] if index >= 0 else None

    def drawn(self, name: str, start: dt.datetime) -> list[tuple[dt.datetime, float | None]]:
        """The line from `start` on as corners; None breaks it."""
        line: list[tuple[dt.datetime, float]] = getattr(self, name)
        points: list[tuple[dt.datetime, float | None]] = [(max(at, start), value) for at, value in line]
        for begin, end in self.gaps:
            points += [(begin, self.at(name, begin)), (begin + dt.timedelta(microseconds=1), None)]
            points += [(end, self.at(name, end))]
        points = [point for point in points if self.until is not None and point[0] <= self.until]
        if points and self.until is not None:
            points.append((self.until, self.at(name, self.until)))
        return sorted(points, key=lambda row: row[0])


def quotes_between(*, offers: Sequence[Offer], start: dt.datetime, end: dt.datetime) -> dict[int, list[Quote]]:
    """Offer id -> its quotes in the time, and before them those in force at its start. Two queries, ascending."""
    ids = [offer.pk for offer in offers]
    rows = Quote.objects.filter(offer__in=ids)
    # The last with a price and the last with a count before the start: they may be two.
    before = rows.filter(at__lte=start).order_by()
    in_force = [
        before.filter(**{f"{name}__isnull": False}).values("offer").annotate(at=Max("at")).values_list("offer", "at")
        for name in ("price_usd_per_hour", "availability")
    ]
    wanted = {pair for found in in_force for pair in found}
    moments = {at for _, at in wanted}
    first = [q for q in rows.filter(at__in=moments).order_by("at") if (q.offer_id, q.at) in wanted]
    found: dict[int, list[Quote]] = {}
    for quote in [*first, *rows.filter(at__gt=start, at__lte=end).order_by("at")]:
        found.setdefault(quote.offer_id, []).append(quote)
    return found


def known_until(*, latest_at: dt.datetime | None, feed: FeedState | None, now: dt.datetime) -> dt.datetime | None:
    """Up to when an offer is known: the last success of its feed; without one, a while after its last quote."""
    if feed is not None and feed.last_success_at is not None:
        return min(now, max(feed.last_success_at, latest_at or feed.last_success_at))
    return None if latest_at is None else min(now, latest_at + FILE_PATIENCE)


def silences(*, start: dt.datetime) -> dict[str, list[Gap]]:
    """Name of a feed -> its times of silence since `start`. One query."""
    found: dict[str, list[Gap]] = {}
    for name, begin, end in FeedGap.objects.filter(end__gt=start).values_list("feed__name", "start", "end"):
        found.setdefault(name, []).append((begin, end))
    return found


def gaps_of(*, offer: Offer, feed: FeedState | None, start: dt.datetime) -> list[Gap]:
    """Times of silence of the offer's feed that no later poll has filled with quotes."""
    if feed is None:
        return []
    silent = FeedGap.objects.filter(feed=feed, end__gt=start).order_by("start").values_list("start", "end")
    return [gap for gap in silent if not Quote.objects.filter(offer=offer, at__gt=gap[0], at__lt=gap[1]).exists()]


def steps_of(*, quotes: Iterable[Quote], until: dt.datetime | None, gaps: Iterable[Gap]) -> Steps:
    """Ascending quotes as steps."""
    steps = Steps(until=until, gaps=list(gaps))
    for quote in quotes:
        if quote.price_usd_per_hour is not None:
            steps.price.append((quote.at, float(quote.price_usd_per_hour)))
        if quote.availability is not None:
            steps.count.append((quote.at, float(quote.availability)))
    return steps
