"""Reads about the market: an offer's series, what can be had now, feeds and scores."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import OuterRef, Q, QuerySet, Subquery

from forecasting.feeds.history import series_of
from forecasting.feeds.rows import Batch, Observation, OfferKey
from forecasting.series import Series
from jobs.models.market import FeedState, MarketSeriesScore, Offer, QuarantinedQuote, Quote

# A feed that has had no success for this many of its periods is shown as late.
LATE_PERIODS = 3


@dataclass(frozen=True)
class FeedView:
    """A feed and how long ago it last worked."""

    feed: FeedState
    age_s: float | None
    is_late: bool


def offers_with_latest(*, provider: str | None = None, is_spot: bool | None = None) -> QuerySet[Offer]:
    """Offers with `latest_at`, `latest_price_usd_per_hour` and `latest_availability`, in one query."""

    def newest(has: Q, field: str) -> Subquery:
        return Subquery(Quote.objects.filter(has, offer=OuterRef("pk")).order_by("-at").values(field)[:1])

    priced, counted = Q(price_usd_per_hour__isnull=False), Q(availability__isnull=False)
    offers = Offer.objects.annotate(
        latest_at=newest(Q(), "at"),
        latest_price_usd_per_hour=newest(priced, "price_usd_per_hour"),
        latest_availability=newest(counted, "availability"),
    )
    if provider is not None:
        offers = offers.filter(provider=provider)
    return offers if is_spot is None else offers.filter(is_spot=is_spot)


def offer_series(*, offer: Offer, start: dt.datetime, end: dt.datetime, gap_s: float = 300.0) -> Series | None:
    """The offer's price and availability on an even grid, or None when nothing is known before `end`.

    The last quote before `start` is in force at the start, so that an offer whose price has not moved for a month is a
    flat line and not an empty one.
    """
    key = OfferKey(offer.provider, offer.region, offer.zone, offer.instance_type, offer.product, offer.is_spot)
    quotes = Quote.objects.filter(offer=offer)
    rows: list[tuple[dt.datetime, Decimal | None, int | None]] = []
    fields = ("at", "price_usd_per_hour", "availability")
    for known in (Q(price_usd_per_hour__isnull=False), Q(availability__isnull=False)):
        before = quotes.filter(known, at__lte=start).order_by("-at").values_list(*fields).first()
        rows += [before] if before else []
    rows += list(quotes.filter(at__gt=start, at__lt=end).order_by("at").values_list(*fields))
    if not rows:
        return None
    batch = Batch([Observation(key, at.timestamp(), price, count) for at, price, count in rows])
    first = min(row.at_s for row in batch.observations)
    begin = max(start.timestamp(), first)
    return series_of(batch, gap_s=gap_s, start_s=begin, end_s=end.timestamp()).get(key)


def feeds_overview(*, now: dt.datetime) -> list[FeedView]:
    """Every feed with the age of its last success; late when it has missed several periods."""
    found = []
    for feed in FeedState.objects.all():
        age_s = (now - feed.last_success_at).total_seconds() if feed.last_success_at else None
        late = feed.is_enabled and (age_s is None or age_s > LATE_PERIODS * feed.period_s)
        found.append(FeedView(feed, age_s, late))
    return found


def feeds_due(*, now: dt.datetime) -> list[FeedState]:
    """Enabled feeds whose next try has come."""
    return list(FeedState.objects.filter(is_enabled=True, next_try_at__lte=now).order_by("next_try_at"))


def scores_of_offer(*, offer: Offer) -> list[MarketSeriesScore]:
    """The forecasters' scores on this offer, best first per target."""
    return list(MarketSeriesScore.objects.filter(offer=offer).order_by("target", "mae"))


def quarantine_recent(*, limit: int = 100) -> list[dict[str, Any]]:
    """The rows last put in quarantine, with reasons."""
    fields = ("feed", "where", "reason", "raw", "num_seen", "first_seen_at", "last_seen_at")
    return list(QuarantinedQuote.objects.values(*fields)[:limit])
