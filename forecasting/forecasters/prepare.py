"""Whatever a caller has becomes an even, finite history; what had to be assumed or repaired is said in warnings.

Accepted: a :class:`forecasting.series.Series`, a sequence of values, a sequence of (time, value) pairs, or a pandas
Series with dates as its index. Values may be numbers, Decimal, text or missing; times may be unsorted, repeated,
irregular.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from forecasting.feeds.values import unix_s
from forecasting.series import Series, step_series

# K ticks
ASSUMED_GAP_S = 3600.0
MAX_POINTS = 50_000
# A grid this much longer than the number of rows means that one odd time stretched it; longer spacing is used then.
_MAX_STRETCH = 50


@dataclass(frozen=True)
class History:
    """Values [K] on an even grid, none missing, none negative. ``is_count`` when they are GPUs and not money."""

    values: np.ndarray
    gap_s: float
    start_s: float
    is_count: bool
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_constant(self) -> bool:
        return len(self) > 0 and float(np.ptp(self.values)) == 0.0

    @property
    def end_s(self) -> float:
        return self.start_s + len(self) * self.gap_s

    def extended(self, new: np.ndarray) -> History:
        """With further values after the last one; the oldest fall out beyond MAX_POINTS."""
        values = np.concatenate([self.values, new])
        dropped = max(0, len(values) - MAX_POINTS)
        return History(values[dropped:], self.gap_s, self.start_s + dropped * self.gap_s, self.is_count, self.warnings)

    def head(self, num_points: int) -> History:
        return History(self.values[:num_points], self.gap_s, self.start_s, self.is_count, self.warnings)

    def ticks_per_day(self) -> int:
        """How many ticks make a day, rounded; 0 when a tick is longer than half a day."""
        ticks = round(86_400 / self.gap_s)
        return ticks if ticks >= 2 else 0


def prepare(source: Any, target: str | None = None) -> History:
    """Never raises for odd data; an input without any usable value gives a history of length 0 with its warning."""
    if isinstance(source, History):
        return source
    if isinstance(source, Series):
        return _from_series(source, target)
    if hasattr(source, "index") and hasattr(source, "to_numpy"):
        source = _from_pandas(source)
    rows = list(source) if isinstance(source, Iterable) and not isinstance(source, (str, bytes)) else [source]
    is_count = target == "availability"
    if rows and all(isinstance(row, (tuple, list, np.ndarray)) and len(row) == 2 for row in rows):
        return _from_pairs(rows, is_count)
    column, warnings = repaired([number(value) for value in rows])
    return History(
        column[-MAX_POINTS:], ASSUMED_GAP_S, 0.0, is_count, ("no times given: hourly values assumed", *warnings)
    )


def number(value: object) -> float:
    """A value as a float, NaN when it is none."""
    try:
        return float(Decimal(value.strip())) if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, InvalidOperation, OverflowError):
        return math.nan


def repaired(values: Sequence[float] | np.ndarray, last: float | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Missing, infinite and negative values take the value before them (``last`` before the first, else the next one)."""
    column = np.asarray(values, dtype=np.float64).ravel()
    good = np.isfinite(column) & (column >= 0)
    if good.all():
        return column, ()
    bad = int((~good).sum())
    said = (f"{bad} of {len(column)} values were missing, negative or not finite; the value before each was held",)
    if last is not None:
        column, good = np.append(last, column), np.append(True, good)
    if not good.any():
        return np.zeros(0), said
    held = np.maximum.accumulate(np.where(good, np.arange(len(column)), -1))
    held[held < 0] = int(np.argmax(good))
    filled = column[held]
    return (filled[1:] if last is not None else filled), said


def _from_series(series: Series, target: str | None) -> History:
    wanted = target or ("price" if series.price is not None else "availability")
    column = getattr(series, wanted, None)
    if column is None:
        return History(np.zeros(0), series.gap_s, series.start_s, wanted == "availability", (f"no {wanted} known",))
    cut = max(0, len(column) - MAX_POINTS)
    values = np.asarray(column[cut:], dtype=np.float64)
    return History(values, series.gap_s, series.start_s + cut * series.gap_s, wanted == "availability")


def _from_pandas(source: Any) -> list[Any]:
    values = list(source.to_numpy(dtype=object))
    stamps = list(source.index)
    dated = bool(stamps) and all(hasattr(stamp, "timestamp") for stamp in stamps)
    return list(zip(stamps, values, strict=True)) if dated else values


def _from_pairs(rows: Sequence[Sequence[Any]], is_count: bool) -> History:
    """Sorted, unique (the last of equal times wins) and held on the grid of the median spacing."""
    times, values, unread = [], [], 0
    for at, value in rows:
        amount = number(value)
        try:
            moment = unix_s(at)
        except (ValueError, OverflowError):
            unread += 1
            continue
        if math.isfinite(amount) and amount >= 0:
            times.append(moment)
            values.append(amount)
        else:
            unread += 1
    warnings = [f"{unread} of {len(rows)} rows had no usable time or value and were left out"] if unread else []
    if not times:
        return History(np.zeros(0), ASSUMED_GAP_S, 0.0, is_count, tuple(warnings))
    return _gridded(np.array(times), np.array(values), is_count, warnings)


def _gridded(times: np.ndarray, values: np.ndarray, is_count: bool, warnings: list[str]) -> History:
    steps = np.diff(np.unique(times))
    if len(steps) < len(times) - 1:
        warnings.append(f"{len(times) - 1 - len(steps)} repeated times: the last value of each was kept")
    if (np.diff(times) < 0).any():
        warnings.append("times were not in order and were sorted")
    gap_s = float(np.median(steps)) if len(steps) else ASSUMED_GAP_S
    span = float(times.max() - times.min())
    gap_s = max(gap_s, span / (_MAX_STRETCH * len(times)), span / MAX_POINTS, 1e-3)
    if len(steps) and float(np.ptp(steps)) > 1e-6 * gap_s:
        warnings.append(f"times were irregular and were put on a grid of {gap_s:g} s")
    end_s = float(times.max()) + gap_s
    series = step_series("history", times, gap_s=gap_s, price=values, end_s=end_s)
    return History(np.array(series.price), gap_s, series.start_s, is_count, tuple(warnings))
