"""Numbers as trainers have them (tensors, numpy, bfloat16, None, nested dicts) to plain Python numbers.

Nothing here imports torch or numpy: a value is asked what it can do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

Number = int | float | None


class NotANumber(ValueError):
    """The value cannot be reported as a number; the message says why."""


def to_number(value: Any) -> Number:
    """A Python int, float (perhaps NaN or infinite) or None for *not measured*.

    Accepts bool, int, float, Decimal, numeric text, None, and any zero-dimensional (or one-element) array or tensor,
    on any device and of any dtype. Raises `NotANumber` for the rest.
    """
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, bool | int):
        return int(value)
    if isinstance(value, Decimal | str):
        return _from_text(value)
    item = getattr(value, "item", None)
    if item is None:
        raise NotANumber(f"{type(value).__name__} is not a number")
    try:
        plain = item()
    except (ValueError, RuntimeError, TypeError) as error:
        raise NotANumber(f"{type(value).__name__} with {_shape(value)} is not one number") from error
    if plain is value or isinstance(plain, complex):
        raise NotANumber(f"{type(value).__name__} is not a real number")
    return to_number(plain)


def _from_text(value: Decimal | str) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise NotANumber(f"{str(value)[:40]!r} is not a number") from error


def _shape(value: Any) -> str:
    return f"shape {tuple(getattr(value, 'shape', ()))}"


def flatten_numbers(metrics: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Number], dict[str, str]]:
    """Coerce a metrics dict one entry at a time; nested dicts become `outer/inner`.

    Returns (numbers, refused) where `refused` maps a name to the reason: one bad entry never costs the others.
    """
    numbers: dict[str, Number] = {}
    refused: dict[str, str] = {}
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            inner, inner_refused = flatten_numbers(value, f"{name}/")
            numbers.update(inner)
            refused.update(inner_refused)
            continue
        try:
            numbers[name] = to_number(value)
        except NotANumber as error:
            refused[name] = str(error)
    return numbers, refused


def finite_or_none(value: Number) -> Number:
    """None where the value is NaN or infinite, for places that have no non-finite flag (log files, JSON markers)."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
