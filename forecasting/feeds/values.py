"""Reading times and money from what providers write."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal, InvalidOperation

# Plain numbers at least this large are unix milliseconds, not seconds (the year 2001 in milliseconds).
_EPOCH_MS = 1e12
# Far above any instance: an amount beyond it is a mistake of unit, and Decimal arithmetic stays exact below it.
MAX_USD_PER_HOUR = Decimal(100_000)


def unix_s(value: object) -> float:
    """Unix seconds UTC from ISO text, a datetime, or a number of unix seconds or milliseconds. No zone means UTC.

    Raises ValueError with what was read.
    """
    if isinstance(value, dt.datetime):
        moment = value
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        return _epoch(float(value))
    else:
        text = str(value).strip()
        try:
            return _epoch(float(text))
        except ValueError:
            pass
        try:
            moment = dt.datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"time {text!r} is neither ISO 8601 nor unix seconds") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=dt.UTC)
    return moment.timestamp()


def has_zone(value: object) -> bool:
    """Whether a written time says which zone it is in; numbers count as unix time and do."""
    text = str(value).strip()
    try:
        float(text)
    except ValueError:
        return text.endswith("Z") or "+" in text or text.rfind("-") > 9
    return True


def _epoch(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError(f"time {number!r} is not a finite number")
    return number / 1000 if abs(number) >= _EPOCH_MS else number


def price_or_reason(value: object) -> tuple[Decimal | None, str]:
    """A believable price, or None and why not. Accepts numbers, Decimal and text."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None, "price is missing"
    try:
        price = value if isinstance(value, Decimal) else Decimal(str(value).strip())
    except InvalidOperation:
        return None, f"price {str(value)[:40]!r} is not a number"
    if not price.is_finite():
        return None, f"price {price} is not finite"
    if price <= 0:
        return None, "price is zero" if price == 0 else f"price {price} is negative"
    if price > MAX_USD_PER_HOUR:
        return None, f"price {price} is above {MAX_USD_PER_HOUR} USD/h, more than any machine costs"
    return price, ""
