"""Reads about offers: their series on an even grid, what can be had now, and how well they are forecast."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django.db.models import OuterRef, Q, QuerySet, Subquery

from forecasting.feeds.history import series_of
from forecasting.feeds.rows import Batch, Observation, OfferKey
from forecasting.series import Series
from jobs.models import Offer, Quote


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
