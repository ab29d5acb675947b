"""Reads about forecasts: which offers want a new one, and the scores of forecasters."""

from __future__ import annotations

import datetime as dt

from django.db.models import Case, F, FloatField, Max, OuterRef, Q, QuerySet, Subquery, When
from django.db.models.functions import Cast

from jobs.models import MarketForecast, MarketSeriesScore, Offer, Quote
from jobs.scheduler.forecasts import StoredForecast

FORECAST_AGE = dt.timedelta(minutes=10)
SCORE_AGE = dt.timedelta(hours=6)
# An offer that nobody has told of for so long is not forecast: the numbers would be made up.
ALIVE = dt.timedelta(days=2)


def offers_to_forecast(*, now: dt.datetime) -> QuerySet[Offer]:
    """Spot offers whose forecast is missing, old, or older than their newest quote; the oldest forecast first."""
    offers = Offer.objects.filter(is_spot=True, quotes__at__gt=now - ALIVE)
    offers = offers.annotate(quoted_at=Max("quotes__at"), forecast_at=Max("forecasts__computed_at"))
    old = Q(forecast_at=None) | Q(forecast_at__lt=now - FORECAST_AGE) | Q(quoted_at__gt=F("forecast_at"))
    return offers.filter(old).order_by(F("forecast_at").asc(nulls_first=True), "pk")


def offers_to_score(*, now: dt.datetime) -> QuerySet[Offer]:
    """Spot offers with quotes in the last days that were never scored or some time ago, those first that wait longest."""
    due = Q(scored_at=None) | Q(scored_at__lt=now - SCORE_AGE)
    alive = Offer.objects.filter(due, is_spot=True, quotes__at__gt=now - ALIVE).distinct()
    return alive.order_by(F("scored_at").asc(nulls_first=True), "pk")


def forecasts_of(*, offers: list[Offer]) -> dict[tuple[int, str], MarketForecast]:
    """(offer id, target) -> its latest forecast. One query."""
    return {(row.offer_id, row.target): row for row in MarketForecast.objects.filter(offer__in=offers)}


def stored_forecasts(*, offers: list[Offer]) -> dict[tuple[int, str], StoredForecast]:
    """(offer id, target) -> its latest forecast, with what was in force when it was made. One query."""

    def seen(name: str) -> Cast:
        quotes = Quote.objects.filter(offer=OuterRef("offer"), at__lte=OuterRef("computed_at"))
        newest = quotes.filter(**{f"{name}__isnull": False}).order_by("-at").values(name)[:1]
        return Cast(Subquery(newest), FloatField())

    # Only what is forecast is looked up: an offer that has never told a count would be searched to its first quote for one.
    value = Case(When(target="price", then=seen("price_usd_per_hour")), default=seen("availability"))
    rows = MarketForecast.objects.filter(offer__in=offers).defer("quantiles").annotate(seen=value)
    return {
        (row.offer_id, row.target): StoredForecast(
            row.model, row.mean, row.start_at.timestamp(), float(row.gap_s), row.computed_at.timestamp(), row.seen
        )
        for row in rows
    }


def scores_chosen(*, offers: list[Offer], target: str = "price") -> dict[int, MarketSeriesScore]:
    """Offer id -> the score of the forecaster in use. One query."""
    rows = MarketSeriesScore.objects.filter(offer__in=offers, target=target, is_chosen=True)
    return {row.offer_id: row for row in rows}


def scores_of_offer(*, offer: Offer) -> list[MarketSeriesScore]:
    """The forecasters' scores on this offer, best first per target."""
    return list(MarketSeriesScore.objects.filter(offer=offer).order_by("target", "mae"))
