"""Numbers and times as people read them. Pure functions; a missing value is an en dash."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

from django.utils import timezone

NONE = "–"
MINUS = "−"
Number = int | float | Decimal


def known(value: object) -> bool:
    """Whether there is a finite number to show."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool) and math.isfinite(value)


def signed(text: str, value: Number, *, plus: bool = True) -> str:
    """`text` (of the absolute value) with a typographic sign."""
    return (MINUS if value < 0 else "+" if plus and value > 0 else "") + text


def number(value: Number | None, digits: int = 0) -> str:
    """1234.5 -> 1,234 or 1,234.5."""
    if value is None or not known(value):
        return NONE
    text = f"{abs(value):,.{digits}f}"
    return signed(text, value if any(c in "123456789" for c in text) else 0, plus=False)


def figures(value: Number | None, digits: int = 3) -> str:
    """A number with so many significant figures and no exponent between 0.0001 and a million: losses, rates."""
    if value is None or not known(value):
        return NONE
    size = abs(float(value))
    if size == 0:
        return "0"
    if not 1e-4 <= size < 1e6:
        return signed(f"{size:.{digits - 1}e}".replace("e-0", "e-").replace("e+0", "e"), value, plus=False)
    places = max(0, digits - 1 - math.floor(math.log10(size)))
    return signed(f"{size:,.{places}f}", value, plus=False)


def usd(value: Number | None, *, plus: bool = False) -> str:
    """$0, $0.03, $12.40, $1,044: cents below a hundred dollars, and a bound below a cent."""
    if value is None or not known(value):
        return NONE
    size = abs(float(value))
    if size == 0:
        return "$0"
    if size < 0.005:
        return signed("<$0.01", value, plus=False)
    return signed(f"${size:,.2f}" if size < 99.995 else f"${size:,.0f}", value, plus=plus)


def percent(share: Number | None, digits: int = 0) -> str:
    """0.639 -> 64 %. Never rounds up to 100 nor down to 0 what is not there yet."""
    if share is None or not known(share):
        return NONE
    value = float(share) * 100
    shown = round(value, digits)
    edge = 10**-digits
    if shown >= 100 > value:
        shown = 100 - edge
    if shown <= 0 < value:
        shown = edge
    return f"{shown:.{digits}f} %"


def span(seconds: Number | None) -> str:
    """A duration with its two largest units: 41 s, 6 min 05 s, 13 h 20 min, 2 d 21 h."""
    if seconds is None or not known(seconds):
        return NONE
    total = float(seconds)
    size = abs(total)
    if size < 10 and size != int(size):
        return signed(f"{size:.2g} s" if size >= 0.001 else "0 s", total, plus=False)
    whole = round(size)
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, secs = divmod(rest, 60)
    if days:
        text = f"{days} d {hours} h" if hours and days < 30 else f"{days} d"
    elif hours:
        text = f"{hours} h {minutes:02d} min"
    elif minutes:
        text = f"{minutes} min {secs:02d} s" if minutes < 10 and secs else f"{minutes} min"
    else:
        text = f"{secs} s"
    return signed(text, total, plus=False)


def size(num_bytes: Number | None) -> str:
    """Bytes in binary units: 812 B, 9.8 KiB, 1.2 GiB."""
    if num_bytes is None or not known(num_bytes):
        return NONE
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def clock(at: dt.datetime, now: dt.datetime) -> str:
    """A moment in the active time zone, as short as it can be told: 14:40, Thu 04:00, 14 Oct 10:00, 14 Oct 2027."""
    local, today = timezone.localtime(at), timezone.localtime(now)
    days = (local.date() - today.date()).days
    if days == 0:
        return f"{local:%H:%M}"
    if -7 < days < 7:
        return f"{local:%a %H:%M}"
    day = f"{local.day} {local:%b}"
    return f"{day} {local:%H:%M}" if abs(days) < 300 else f"{day} {local:%Y}"


def moment(at: dt.datetime) -> str:
    """A moment in full, in UTC, for titles."""
    return f"{at.astimezone(dt.UTC):%Y-%m-%d %H:%M:%S} UTC"
