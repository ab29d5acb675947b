"""Tables of counts without a header: ``hours,count``, ``ms,count``, ``date, time, count``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from forecasting.feeds.values import unix_s
from forecasting.series import Series, step_series

TABLE_GAP_S = 60.0
# Relative times: whole numbers that are all multiples of a thousand and reach this far are milliseconds.
_LEAST_MS = 60_000


@dataclass(frozen=True)
class Clock:
    """Times of the rows in seconds, the unit they were written in, and whether they are unix times."""

    times_s: np.ndarray
    unit: str
    is_absolute: bool

    def stamp(self, series: Series, notes: tuple[str, ...] = ()) -> Series:
        """The series with what was assumed about its clock noted; without a calendar its start is 0.0 (unknown)."""
        said = (f"times were read as {self.unit}",)
        return replace(series, start_s=series.start_s if self.is_absolute else 0.0, notes=said + notes)


def clock_of(column: Sequence[str], name: str, unit: str | None = None) -> Clock:
    """Read a column of times; the unit of relative times is guessed from their shape unless given (s, ms or h).

    Decimals mean hours, whole thousands mean milliseconds, other whole numbers seconds. Raises ValueError for text.
    """
    texts = [text.strip() for text in column]
    try:
        numbers = np.array([float(text) for text in texts])
    except ValueError:
        return Clock(np.array([unix_s(text) for text in texts]), "date and time, UTC", True)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: the times must be finite numbers")
    if unit is None and numbers.min() >= 1e9:
        return Clock(np.array([unix_s(float(number)) for number in numbers]), "unix time", True)
    found = unit or _guess(texts, numbers)
    factor = {"s": 1.0, "ms": 1e-3, "h": 3600.0}.get(found)
    if factor is None:
        raise ValueError(f"{name}: time unit {found!r} is not one of s, ms, h")
    return Clock(numbers * factor, {"s": "seconds", "ms": "milliseconds", "h": "hours"}[found], False)


def is_table(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row is a time (one or two columns) and a whole count."""
    if not rows or len(rows[0]) not in (2, 3):
        return False
    try:
        int(rows[0][-1])
        clock_of([" ".join(field.strip() for field in rows[0][:-1])], "row 1")
    except ValueError:
        return False
    return True


def read_table(
    rows: Sequence[Sequence[str]], name: str, *, gap_s: float = TABLE_GAP_S, unit: str | None = None
) -> Series:
    """Counts as a series; each row holds until the next. Raises ValueError with the row that is neither."""
    counts = []
    for number, row in enumerate(rows, start=1):
        try:
            count = int(row[-1])
        except (ValueError, IndexError):
            count = -1
        if count < 0 or len(row) != len(rows[0]):
            raise ValueError(f"{name}: row {number} is not a time and a count of 0 or more: {row}")
        counts.append(count)
    clock = clock_of([" ".join(field.strip() for field in row[:-1]) for row in rows], name, unit)
    return clock.stamp(step_series(name, clock.times_s, gap_s=gap_s, availability=np.array(counts)))


def _guess(texts: Sequence[str], numbers: np.ndarray) -> str:
    if any("." in text for text in texts):
        return "h"
    if numbers.max() >= _LEAST_MS and (numbers % 1000 == 0).all():
        return "ms"
    return "s"
