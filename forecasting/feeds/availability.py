"""Availability traces ``{"metadata": {"gap_seconds": 300}, "data": [0, 3, 16, …]}``, optionally with ``"prices"``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from forecasting.series import Series


def is_trace(document: object) -> bool:
    """Whether a parsed JSON document has the shape of an availability trace."""
    return isinstance(document, Mapping) and ("data" in document or "prices" in document)


def read_trace(document: Mapping[str, Any], name: str) -> Series:
    """A trace as a series. Missing ticks (null) become 0 GPUs, since what nobody saw cannot be planned with.

    Raises ValueError when the tick spacing is missing or the values are not numbers.
    """
    metadata = document.get("metadata") or {}
    gap = metadata.get("gap_seconds")
    if gap is None:
        raise ValueError(f"{name}: no metadata.gap_seconds, the tick spacing in seconds; add it to the file")
    availability, notes = _availability(document.get("data"), name)
    prices = document.get("prices")
    return Series(
        str(metadata.get("name") or name),
        float(metadata.get("start_s") or 0.0),
        float(gap),
        availability,
        None if prices is None else np.asarray(prices, dtype=np.float64),
        notes,
    )


def _availability(data: object, name: str) -> tuple[np.ndarray | None, tuple[str, ...]]:
    if data is None:
        return None, ()
    if not isinstance(data, list) or not data:
        raise ValueError(f"{name}: 'data' must be a list of counts with at least one entry")
    missing = sum(value is None for value in data)
    try:
        column = np.array([0.0 if value is None else float(value) for value in data])
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: 'data' must hold numbers only ({error})") from error
    bad = ~np.isfinite(column) | (column < 0)
    column[bad] = 0.0
    notes = []
    if missing:
        notes.append(f"{missing} of {len(data)} ticks were missing and count as 0")
    if bad.any():
        notes.append(f"{int(bad.sum())} of {len(data)} ticks were negative or not finite and count as 0")
    return np.floor(column).astype(np.int64), tuple(notes)
