"""Writes about forecasts of the market: what the clock has computed, for pages to read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from django.db import transaction

from forecasting.forecasters import Forecast
from forecasting.forecasters.scores import Score
from jobs.models import MarketForecast, MarketSeriesScore, Offer


def forecast_store(
    *, offer: Offer, target: str, forecast: Forecast, now: dt.datetime, held_1h: float | None = None
) -> MarketForecast:
    """Replace the forecast of an offer's price or availability."""
    lines = {f"{level:g}": _rounded(line) for level, line in zip(forecast.levels, forecast.quantiles, strict=True)}
    row, _ = MarketForecast.objects.update_or_create(
        offer=offer,
        target=target,
        defaults={
            "model": forecast.model,
            "fallback": (forecast.fallback or "")[:300],
            "start_at": dt.datetime.fromtimestamp(forecast.start_s, dt.UTC),
            "gap_s": round(forecast.gap_s),
            "mean": _rounded(forecast.mean),
            "quantiles": lines,
            "held_1h": held_1h,
            "computed_at": now,
        },
    )
    return row


def _rounded(line: Iterable[float]) -> list[float]:
    return [round(float(value), 6) for value in line]


def scores_store(
    *, offer: Offer, target: str, scores: Iterable[Score], chosen: str, reason: str, now: dt.datetime
) -> None:
    """Replace the scores of an offer's series by those of the latest comparison."""
    rows = [
        MarketSeriesScore(
            offer=offer,
            target=target,
            model=score.model,
            is_chosen=score.model == chosen,
            mae=score.mae,
            mase=score.mase,
            pinball=score.pinball,
            coverage_80=score.coverage_80,
            num_origins=score.num_origins,
            seconds=score.seconds,
            fallback=(score.fallback or "")[:300],
            reason=reason[:300] if score.model == chosen else "",
            computed_at=now,
        )
        for score in scores
    ]
    with transaction.atomic():
        Offer.objects.filter(pk=offer.pk).update(scored_at=now)
        MarketSeriesScore.objects.filter(offer=offer, target=target).delete()
        MarketSeriesScore.objects.bulk_create(rows)
