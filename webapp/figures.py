"""Geometry of the small drawings: places in percent on meters and whiskers, paths of sparklines. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from webapp.formats import known

ROOM = 0.08  # of the range, left and right of a whisker
WIDTH, TOP, BOTTOM = 100.0, 2.0, 22.0  # of a sparkline's box


def share_place(share: Any) -> str | None:
    """Place on a bar of a share from 0 to 1, in percent; beyond the ends it stops there."""
    return f"{100 * min(1.0, max(0.0, float(share))):.1f}" if known(share) else None


def whisker_places(effect: Mapping[str, float] | None, measured: Any = None) -> dict[str, Any]:
    """Places in percent of zero, low, high, expected and measured on one axis; `{"empty": True}` without a number."""
    values = [v for v in (effect or {}).values() if known(v)]
    if not effect or not values:
        return {"empty": True}
    points = [0.0, *values, *([float(measured)] if known(measured) else [])]
    low, high = min(points), max(points)
    room = ROOM * (high - low) or 1.0

    def place(value: Any) -> str | None:
        return f"{100 * (value - low + room) / (high - low + 2 * room):.1f}" if known(value) else None

    named = {name: place(effect.get(name, math.nan)) for name in ("low", "high", "expected")}
    return {"zero": place(0.0), "measured": place(measured), **named}


def ratio_places(value: float, values: Sequence[float]) -> dict[str, str]:
    """Places in percent of a ratio, of 1, and of the bar between them, on an axis that holds all `values`."""
    low, high = min(0.9, *values), max(1.1, *values)
    room = ROOM * (high - low)

    def place(number: float) -> float:
        return 100 * (number - low + room) / (high - low + 2 * room)

    ends = sorted((place(1.0), place(value)))
    named = {"zero": place(1.0), "low": ends[0], "high": ends[1], "measured": place(value)}
    return {name: f"{number:.1f}" for name, number in named.items()}


def spark_path(values: Sequence[float | None]) -> dict[str, str]:
    """`path` of a line over even steps with gaps where a value is missing, and the place (`x`, `y`) of its last point."""
    finite = [float(v) for v in values if v is not None and known(v)]
    if len(finite) < 2:
        return {"path": ""}
    low, height = min(finite), (max(finite) - min(finite)) or 1.0
    pen, path, x, y = "M", [], 0.0, 0.0
    for i, value in enumerate(values):
        if value is None or not known(value):
            pen = "M"
            continue
        x, y = WIDTH * i / (len(values) - 1), BOTTOM - (BOTTOM - TOP) * (float(value) - low) / height
        path.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    return {"path": "".join(path), "x": f"{x:.1f}", "y": f"{y:.1f}"}
