"""Numbers and times as people read them."""

from __future__ import annotations

import datetime as dt
import math

import pytest
from django.utils import timezone

from webapp import formats


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (formats.usd, 0, "$0"),
        (formats.usd, 0.001, "<$0.01"),
        (formats.usd, 12.4, "$12.40"),
        (formats.usd, 1044, "$1,044"),
        (formats.usd, -34, "−$34.00"),
        (formats.usd, None, "–"),
        (formats.usd, math.nan, "–"),
        (formats.percent, 0.6392, "64 %"),
        (formats.percent, 0.9999, "99 %"),
        (formats.percent, 0.0001, "1 %"),
        (formats.percent, 1, "100 %"),
        (formats.percent, 0, "0 %"),
        (formats.span, 0, "0 s"),
        (formats.span, 0.25, "0.25 s"),
        (formats.span, 41, "41 s"),
        (formats.span, 365, "6 min 05 s"),
        (formats.span, 48_000, "13 h 20 min"),
        (formats.span, 248_400, "2 d 21 h"),
        (formats.span, -7_560, "−2 h 06 min"),
        (formats.span, math.inf, "–"),
        (formats.size, 812, "812 B"),
        (formats.size, 10_035, "9.8 KiB"),
        (formats.number, 41_300, "41,300"),
        (formats.number, -0.0001, "0"),
        (formats.figures, 2.0712, "2.07"),
        (formats.figures, 0.00012, "0.000120"),
        (formats.figures, 1e-9, "1.00e-9"),
        (formats.figures, -12_345.6, "−12,346"),
        (formats.figures, True, "–"),
    ],
)
def test_a_value_is_written_as_people_read_it(function, value: object, text: str) -> None:  # type: ignore[no-untyped-def]
    assert function(value) == text


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0, "13:40"), (4, "17:40"), (15, "Thu 04:40"), (24 * 20, "3 Nov 12:40"), (24 * 400, "18 Nov 2027")],
)
def test_a_moment_is_told_as_shortly_as_it_can_be(hours: int, text: str) -> None:
    now = dt.datetime(2026, 10, 14, 11, 40, tzinfo=dt.UTC)
    with timezone.override("Europe/Paris"):
        assert formats.clock(now + dt.timedelta(hours=hours), now) == text
