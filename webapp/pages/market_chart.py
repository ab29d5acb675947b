"""The large chart of one offer: what was measured, what is expected, and the same numbers as a table."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.utils import timezone

from jobs.models import MarketForecast
from jobs.selectors.market_page import OfferLine, quotes_of
from jobs.selectors.market_steps import gaps_of, steps_of

DAYS = (1, 3, 7, 14)
AHEAD_HOURS = (1, 2, 3, 6, 9, 12)
LEVELS = ("0.1", "0.25", "0.5", "0.75", "0.9")


def chart_document(*, line: OfferLine, days: int, now: dt.datetime) -> dict[str, Any]:
    """What the browser draws: lines as [times, values] on the team's clock; null in a value breaks the line."""
    start = now - dt.timedelta(days=days)
    gaps = gaps_of(offer=line.offer, feed=line.feed, start=start)
    steps = steps_of(quotes=quotes_of(offer=line.offer, start=start, end=now), until=line.known_at, gaps=gaps)
    return {
        "now": local(now),
        "start": local(start),
        "on_demand": None if line.on_demand_usd_per_hour is None else float(line.on_demand_usd_per_hour),
        "price": _columns(steps.drawn("price", start)),
        "count": _columns(steps.drawn("count", start)),
        "price_ahead": _fan(line.price_forecast),
        "count_ahead": _fan(line.count_forecast),
    }


def _columns(points: list[tuple[dt.datetime, float | None]]) -> list[list[Any]]:
    return [[local(at) for at, _ in points], [value for _, value in points]]


def _fan(forecast: MarketForecast | None) -> dict[str, Any] | None:
    if forecast is None:
        return None
    gap = dt.timedelta(seconds=forecast.gap_s)
    times = [local(forecast.start_at + gap * i) for i in range(len(forecast.mean))]
    return {"times": times, "mean": forecast.mean, **{level: forecast.quantiles[level] for level in LEVELS}}


def ahead_table(*, line: OfferLine, now: dt.datetime) -> list[dict[str, Any]]:
    """Price and availability at some hours ahead, with their bands."""
    rows = []
    for hours in AHEAD_HOURS:
        at = now + dt.timedelta(hours=hours)
        price, count = _at(line.price_forecast, at), _at(line.count_forecast, at)
        if price or count:
            rows.append({"hours": hours, "at": at, "price": price, "count": count})
    return rows


def _at(forecast: MarketForecast | None, at: dt.datetime) -> dict[str, float] | None:
    """The forecast of one moment: low80, low50, middle, high50, high80; None beyond its end."""
    if forecast is None:
        return None
    tick = int((at - forecast.start_at).total_seconds() // forecast.gap_s)
    tick = min(tick, len(forecast.mean) - 1) if tick <= len(forecast.mean) + 12 else tick
    if not 0 <= tick < len(forecast.mean):
        return None
    names = ("low80", "low50", "middle", "high50", "high80")
    return {name: forecast.quantiles[level][tick] for name, level in zip(names, LEVELS, strict=True)}


def local(at: dt.datetime) -> str:
    """A moment on the team's clock, as Plotly reads it."""
    return timezone.localtime(at).strftime("%Y-%m-%d %H:%M:%S")
