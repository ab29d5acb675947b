"""Geometry of the weights of a policy selector: stacked areas over windows, the heaviest at the bottom. Pure."""

from __future__ import annotations

from typing import Any

WIDTH, HEIGHT = 1000.0, 100.0
SHADES = (1.0, 0.65, 0.42, 0.28, 0.18)
LEAST_GAP = 9.0  # percent between two labels
NAMED = 0.02  # weights below it have no label


def weights_drawn(selector: dict[str, Any] | None) -> dict[str, Any] | None:
    """Paths and labels of stored weights; None where there are none or one policy only."""
    if not selector or len(selector["names"]) < 2 or len(selector["weights"]) < 2:
        return None
    last = selector["weights"][-1]
    order = sorted(range(len(last)), key=lambda m: -last[m])
    below = [0.0] * len(selector["weights"])
    parts = []
    for rank, m in enumerate(order):
        above = [b + row[m] for b, row in zip(below, selector["weights"], strict=True)]
        parts.append(
            {
                "name": selector["names"][m],
                "weight": last[m],
                "path": _band(below, above),
                "shade": SHADES[min(rank, len(SHADES) - 1)],
                "middle": HEIGHT * (1 - (below[-1] + above[-1]) / 2),
            }
        )
        below = above
    _spread(parts)
    return {"parts": parts, **{name: selector[name] for name in ("regret", "bound", "leader")}, "num": len(below) - 1}


def _band(below: list[float], above: list[float]) -> str:
    step = WIDTH / (len(below) - 1)
    there = [f"{i * step:.1f} {HEIGHT * (1 - v):.1f}" for i, v in enumerate(below)]
    back = [f"{i * step:.1f} {HEIGHT * (1 - v):.1f}" for i, v in enumerate(above)][::-1]
    return "M" + "L".join([*there, *back]) + "Z"


def _spread(parts: list[dict[str, Any]]) -> None:
    """Places `label` of each part that is thick enough, from the bottom up, so that none lies over another."""
    lowest = HEIGHT
    for part in parts:
        if part["weight"] < NAMED:
            continue
        place = max(0.0, min(part["middle"], lowest))
        part["label"] = f"{place:.1f}"
        lowest = place - LEAST_GAP
