"""From observations to even series: price histories are lists of *changes*, so a value holds until the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from forecasting.feeds.rows import Batch, Observation, OfferKey
from forecasting.series import Series, step_series

PRICE_GAP_S = 300.0


def series_of(
    batch: Batch, *, gap_s: float = PRICE_GAP_S, start_s: float | None = None, end_s: float | None = None
) -> dict[OfferKey, Series]:
    """One series per offer on a grid of ``gap_s`` seconds.

    Without ``start_s`` a series begins at its first row; with it, the last row at or before the start gives the price
    in force there. ``end_s`` defaults to the newest row of the whole batch, so that all offers end together.
    Offers without any row before ``end_s`` are left out.
    """
    batch.tidy()
    if not batch.observations:
        return {}
    end = max(row.at_s for row in batch.observations) if end_s is None else end_s
    found: dict[OfferKey, Series] = {}
    for key, rows in batch.by_offer().items():
        usable = [row for row in rows if row.at_s < end] if end_s is not None else rows
        if not usable:
            batch.notes.append(f"{key.label}: no row before the end of the window")
            continue
        begin = start_s if start_s is not None else math.floor(usable[0].at_s / gap_s) * gap_s
        found[key] = _one(key, usable, gap_s, begin, max(end, begin + gap_s))
    return found


def _one(key: OfferKey, rows: Sequence[Observation], gap_s: float, start_s: float, end_s: float) -> Series:
    """Prices and counts may come in different rows, so each column is put on the grid from the rows that have it."""
    priced = [row for row in rows if row.price_usd_per_hour is not None]
    counted = [row for row in rows if row.availability is not None]
    price, availability = None, None
    if priced:
        values = np.array([float(row.price_usd_per_hour or 0) for row in priced])
        times = np.array([row.at_s for row in priced])
        price = step_series(key.label, times, gap_s=gap_s, price=values, start_s=start_s, end_s=end_s).price
    if counted:
        counts = np.array([row.availability or 0 for row in counted])
        times = np.array([row.at_s for row in counted])
        availability = step_series(
            key.label, times, gap_s=gap_s, availability=counts, start_s=start_s, end_s=end_s
        ).availability
    return Series(key.label, start_s, gap_s, availability, price)
