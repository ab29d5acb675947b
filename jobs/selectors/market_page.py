"""What the page Market shows: a line per offer with a day behind and the hours ahead, and one offer in detail."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from django.db.models import QuerySet

from jobs.models import FeedState, MarketForecast, MarketSeriesScore, Offer, Quote
from jobs.selectors.forecasts import forecasts_of, scores_chosen
from jobs.selectors.market import offers_with_latest
from jobs.selectors.market_steps import Steps, known_until, quotes_between, silences, steps_of

SPARK_PAST = dt.timedelta(hours=24)
SPARK_STEP = dt.timedelta(minutes=30)


@dataclass(frozen=True)
class OfferLine:
    """One row of the table. `price` and `count` hold a value per half hour of the last day, None where nobody knows."""

    offer: Offer
    price_usd_per_hour: Decimal | None
    availability: int | None
    on_demand_usd_per_hour: Decimal | None
    known_at: dt.datetime | None
    feed: FeedState | None
    is_late: bool
    price: list[float | None] = field(default_factory=list)
    count: list[float | None] = field(default_factory=list)
    price_forecast: MarketForecast | None = None
    count_forecast: MarketForecast | None = None
    score: MarketSeriesScore | None = None

    @property
    def of_on_demand(self) -> float | None:
        """Share of the on-demand price that it costs."""
        if not self.price_usd_per_hour or not self.on_demand_usd_per_hour:
            return None
        return float(self.price_usd_per_hour / self.on_demand_usd_per_hour)


def offers_listed(*, region: str = "", machine: str = "", provider: str = "") -> QuerySet[Offer]:
    """Offers with their latest quotes; spot before on-demand within a region."""
    wanted = {"region": region, "instance_type": machine, "provider": provider}
    offers = offers_with_latest().filter(**{name: value for name, value in wanted.items() if value})
    return offers.order_by("provider", "region", "-is_spot", "zone", "instance_type", "product")


def offer_choices() -> dict[str, list[str]]:
    """What the filters of the page offer: the regions, machines and providers there are."""
    names = ("region", "instance_type", "provider")
    return {n: list(Offer.objects.exclude(**{n: ""}).order_by(n).values_list(n, flat=True).distinct()) for n in names}


def offer_lines(*, offers: Sequence[Offer], now: dt.datetime) -> list[OfferLine]:
    """A line for each offer of `offers_listed`, in a fixed number of queries."""
    feeds = {feed.name: feed for feed in FeedState.objects.all()}
    quotes = quotes_between(offers=offers, start=now - SPARK_PAST, end=now)
    forecasts, scores = forecasts_of(offers=list(offers)), scores_chosen(offers=list(offers))
    dear, silent = on_demand_prices(offers=offers), silences(start=now - SPARK_PAST)
    lines = []
    for offer in offers:
        feed = feeds.get(offer.feed)
        until = known_until(latest_at=offer.latest_at, feed=feed, now=now)  # type: ignore[attr-defined]
        mine = quotes.get(offer.pk, [])
        gaps = [gap for gap in silent.get(offer.feed, []) if not any(gap[0] < quote.at < gap[1] for quote in mine)]
        steps = steps_of(quotes=mine, until=until, gaps=gaps)
        lines.append(
            OfferLine(
                offer=offer,
                price_usd_per_hour=offer.latest_price_usd_per_hour,  # type: ignore[attr-defined]
                availability=offer.latest_availability,  # type: ignore[attr-defined]
                on_demand_usd_per_hour=dear.get(_place(offer)),
                known_at=until,
                feed=feed,
                is_late=until is not None and now - until > (feed.patience if feed else dt.timedelta(days=1)),
                price=_sampled(steps, "price", now),
                count=_sampled(steps, "count", now),
                price_forecast=forecasts.get((offer.pk, "price")),
                count_forecast=forecasts.get((offer.pk, "availability")),
                score=scores.get(offer.pk),
            )
        )
    return lines


def on_demand_prices(*, offers: Sequence[Offer]) -> dict[tuple[str, ...], Decimal]:
    """Provider, region and machine -> the on-demand price in force there. One query."""
    regions = {offer.region for offer in offers}
    rows = offers_with_latest(is_spot=False).filter(region__in=regions)
    return {_place(row): row.latest_price_usd_per_hour for row in rows if row.latest_price_usd_per_hour}  # type: ignore[attr-defined]


def _place(offer: Offer) -> tuple[str, ...]:
    return (offer.provider, offer.region, offer.instance_type, offer.product)


def _sampled(steps: Steps, name: str, now: dt.datetime) -> list[float | None]:
    """The value in force at every half hour of the last day; the newest is the last known if that is recent."""
    num, moments = int(SPARK_PAST / SPARK_STEP), []
    for i in range(num):
        moment = now - SPARK_PAST + SPARK_STEP * (i + 1)
        recent = steps.until is not None and dt.timedelta(0) < moment - steps.until < SPARK_STEP
        moments.append(steps.until if recent and steps.until else moment)
    return [steps.at(name, moment) for moment in moments]


def quotes_of(*, offer: Offer, start: dt.datetime, end: dt.datetime) -> list[Quote]:
    """The offer's quotes in a time, the one in force at its start included; ascending."""
    return quotes_between(offers=[offer], start=start, end=end).get(offer.pk, [])
