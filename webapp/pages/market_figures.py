"""Geometry of the small market charts: a day measured as a step line, the hours ahead as a fan. Pure."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from jobs.models import MarketForecast

WIDTH, TOP, BOTTOM = 100.0, 2.0, 22.0
PAST = dt.timedelta(hours=24)
AHEAD = dt.timedelta(hours=12)
NOW_X = WIDTH * (PAST / (PAST + AHEAD))
STEP = dt.timedelta(minutes=30)
BANDS = {"b80": ("0.1", "0.9"), "b50": ("0.25", "0.75")}


def fan(values: Sequence[float | None], forecast: MarketForecast | None, now: dt.datetime, floor: float | None) -> Any:
    """`line`: path of the measured steps; `b80`, `b50`: paths of the bands; `{}` where nothing is known.

    floor: the lowest value of the scale, where it is not the lowest that was seen (0 for counts).
    """
    edges = {name: [_ahead(forecast, level, now) for level in pair] for name, pair in BANDS.items()}
    seen = [v for v in values if v is not None]
    if not seen:
        return {}
    every = seen + [v for pair in edges.values() for line in pair for v in line] + ([] if floor is None else [floor])
    low, high = min(every), max(every)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * ((value - low) / (high - low) if high > low else 0.5)

    drawn = {"line": _steps(values, y)}
    for name, (lower, upper) in edges.items():
        drawn[name] = _area(lower, upper, y) if lower else ""
    return drawn


def _ahead(forecast: MarketForecast | None, level: str, now: dt.datetime) -> list[float]:
    """A quantile's line every half hour from now on; nothing if the forecast is too old to reach so far."""
    line = forecast.quantiles.get(level) if forecast else None
    if not forecast or not line:
        return []
    gap = dt.timedelta(seconds=forecast.gap_s)
    first = (now - forecast.start_at) / gap
    found = []
    for i in range(int(AHEAD / STEP) + 1):
        tick = int(first + i * (STEP / gap))
        if tick >= len(line):
            break
        found.append(float(line[max(0, tick)]))
    return found


def _steps(values: Sequence[float | None], y: Any) -> str:
    """A line that holds each value for its width and breaks where one is missing."""
    path, width, before = [], NOW_X / len(values), None
    for i, value in enumerate(values):
        if value is not None:
            start = f"M{i * width:.1f} {y(value):.1f}" if before is None else f"V{y(value):.1f}"
            path.append(f"{start}H{(i + 1) * width:.1f}")
        before = value
    return "".join(path)


def _area(lower: Sequence[float], upper: Sequence[float], y: Any) -> str:
    step = (WIDTH - NOW_X) * (STEP / AHEAD)
    there = [f"{NOW_X + i * step:.1f} {y(v):.1f}" for i, v in enumerate(lower)]
    back = [f"{NOW_X + i * step:.1f} {y(v):.1f}" for i, v in enumerate(upper)][::-1]
    return "M" + "L".join([*there, *back]) + "Z"
