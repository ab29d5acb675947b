"""Which quotes are not planned with: other currencies, spot above on-demand, prices an order of magnitude off."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from statistics import median

from forecasting.feeds.rows import Batch, Observation, OfferKey

# A spot price that moves by more than this factor between two quotes is taken for a mistake of unit or currency.
JUMP_FACTOR = Decimal(8)
# Spot may sit at the on-demand price; rounding may put it a little above.
ON_DEMAND_SLACK = Decimal("1.02")
# Cheaper than this share of on-demand is no discount but an error.
LOWEST_SHARE = Decimal("0.02")
# An exchange rate older than this is not used.
RATE_MAX_AGE_DAYS = 7
# So many first quotes decide what an offer's usual price is when nothing older is known.
_FIRST_QUOTES = 7


@dataclass(frozen=True)
class Rate:
    """An exchange rate with the day it was true on."""

    usd_per_unit: Decimal
    on: dt.date


def usd_or_reason(price: Decimal, currency: str, at_s: float, rates: Mapping[str, Rate]) -> tuple[Decimal | None, str]:
    """The price in USD, or None and why it cannot be compared. A missing currency is never taken for USD."""
    code = currency.strip().upper()
    if code == "USD":
        return price, ""
    rate = rates.get(code)
    if rate is None:
        name = code or "unknown"
        return None, f"currency is {name} and there is no exchange rate with a date: not comparable with USD"
    age = abs((dt.datetime.fromtimestamp(at_s, dt.UTC).date() - rate.on).days)
    if age > RATE_MAX_AGE_DAYS:
        return None, f"the {code} rate is of {rate.on}, {age} days from the quote (limit {RATE_MAX_AGE_DAYS})"
    return price * rate.usd_per_unit, ""


def screen(
    batch: Batch,
    *,
    on_demand_usd_per_hour: Mapping[OfferKey, Decimal] | None = None,
    previous_usd_per_hour: Mapping[OfferKey, Decimal] | None = None,
    confirmed: frozenset[OfferKey] = frozenset(),
    now_s: float | None = None,
) -> Batch:
    """Move the quotes that cannot be believed into quarantine; returns the same batch, tidied.

    previous: the last accepted quote of an offer. confirmed: offers whose new price level a person has confirmed, so
    that their jumps pass. A level that has moved stays quarantined until then: money is spent on these numbers.
    """
    batch.tidy()
    on_demand = on_demand_usd_per_hour or {}
    previous = previous_usd_per_hour or {}
    kept: list[Observation] = []
    for key, rows in batch.by_offer().items():
        usual = previous.get(key) or _usual(rows)
        for row in rows:
            reason = _future(row, now_s) or _too_dear(row, on_demand.get(key)) or _jump(row, usual, key in confirmed)
            if reason:
                batch.reject(key.label, reason, row.price_usd_per_hour)
                continue
            kept.append(row)
            usual = row.price_usd_per_hour or usual
    batch.observations = kept
    return batch


def _usual(rows: Sequence[Observation]) -> Decimal | None:
    prices = [row.price_usd_per_hour for row in rows[:_FIRST_QUOTES] if row.price_usd_per_hour is not None]
    return median(prices) if prices else None


def _future(row: Observation, now_s: float | None) -> str:
    if now_s is None or row.at_s <= now_s + 86_400:
        return ""
    return f"dated {dt.datetime.fromtimestamp(row.at_s, dt.UTC):%Y-%m-%d %H:%M} UTC, more than a day in the future"


def _too_dear(row: Observation, on_demand: Decimal | None) -> str:
    price = row.price_usd_per_hour
    if price is None or on_demand is None or not row.key.is_spot:
        return ""
    if price > on_demand * ON_DEMAND_SLACK:
        return f"spot {price} USD/h is above on-demand {on_demand} USD/h"
    if price < on_demand * LOWEST_SHARE:
        return f"spot {price} USD/h is below {LOWEST_SHARE:.0%} of on-demand {on_demand} USD/h"
    return ""


def _jump(row: Observation, usual: Decimal | None, confirmed: bool) -> str:
    price = row.price_usd_per_hour
    if price is None or not usual or confirmed:
        return ""
    if price > usual * JUMP_FACTOR:
        return f"{price} USD/h is {price / usual:.1f} times the last accepted {usual}; confirm the level to use it"
    if price * JUMP_FACTOR < usual:
        return (
            f"{price} USD/h is {usual / price:.1f} times below the last accepted {usual}; confirm the level to use it"
        )
    return ""
