"""Arguments of a decision: which edits are allowed, and what they make of the price."""

from __future__ import annotations

import math
from typing import Any


def edit_errors(proposed: dict[str, Any], allowed: dict[str, Any], edits: dict[str, Any]) -> dict[str, list[str]]:
    """What is wrong with the edits, by name; going back to what was proposed is always right."""
    errors: dict[str, list[str]] = {}
    for name, value in edits.items():
        as_proposed = name in proposed and value == proposed[name]
        if as_proposed and not (isinstance(value, float) and isinstance(proposed[name], int)):
            continue
        if (problem := out_of_range(allowed.get(name), value)) is not None:
            errors[name] = [problem]
    return errors


def out_of_range(allowed: Any, value: Any) -> str | None:
    """Why `value` may not be chosen, or None. `allowed` is a list of choices, {min, max, integer}, or None for nothing."""
    if allowed is None:
        return "This argument may not be changed."
    if isinstance(allowed, list):
        return None if value in allowed else "One of " + ", ".join(str(a) for a in allowed) + "."
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "Give a number."
    if allowed.get("integer") and not isinstance(value, int):  # 4.0 would be refused when it is carried out
        return "Give a whole number, written without a point."
    if not allowed["min"] <= value <= allowed["max"]:
        return f"From {allowed['min']} to {allowed['max']}."
    return None


def price_with(price_usd: float, proposed: dict[str, Any], args: dict[str, Any]) -> float:
    """The price with edited arguments: the cap where there is one, else in proportion to the number of samples, or of workers."""
    if isinstance(cap := args.get("max_usd"), int | float):
        return float(cap)
    name = "count" if "count" in proposed else "num_workers"
    before, after = proposed.get(name), args.get(name)
    if not isinstance(before, int | float) or not isinstance(after, int | float) or before <= 0:
        return price_usd
    return price_usd * after / before


def in_words(args: dict[str, Any], proposed: dict[str, Any]) -> str:
    """What differs from the proposal, for a person."""
    changes = [
        f"{name} {value} (proposed {proposed.get(name)})" for name, value in args.items() if value != proposed.get(name)
    ]
    return ", ".join(changes) or "as proposed"
