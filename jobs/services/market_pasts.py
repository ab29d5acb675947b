"""The past of an offer as the planner saw it: kept once for all decisions of an epoch, and given back bit by bit."""

from __future__ import annotations

import datetime as dt
import zlib

import numpy as np

from forecasting.problem import Ahead
from forecasting.problem import Offer as Past
from jobs.models import MarketPast, Offer

KEEP = dt.timedelta(days=30)  # after that a decision stays as it is, but cannot be made again


def past_keep(*, offer: Offer, slot_s: float, past: Past, now: dt.datetime) -> int:
    """Its id. The same offer, slot length and moment are stored once."""
    ahead = {name: line.tolist() for name, line in vars(past.ahead).items() if line is not None}
    row, _ = MarketPast.objects.get_or_create(
        offer=offer, slot_s=slot_s, at=now, defaults={"packed": packed(past), "ahead": ahead}
    )
    return row.pk


def packed(past: Past) -> bytes:
    counts, prices = np.asarray(past.availability, "<i8"), np.asarray(past.price, "<f8")
    return zlib.compress(counts.tobytes() + prices.tobytes())


def unpacked(row: MarketPast) -> Past:
    """Availability and price as they were, one value per slot, and what was forecast of the slots after."""
    raw = zlib.decompress(bytes(row.packed))
    half = len(raw) // 2
    counts, prices = np.frombuffer(raw[:half], "<i8").astype(np.int64), np.frombuffer(raw[half:], "<f8").astype(float)
    return Past(counts, prices, ahead=Ahead(**{name: np.array(line, float) for name, line in row.ahead.items()}))


def pasts_prune(*, now: dt.datetime) -> int:
    """Forget what is older than `KEEP`; returns how many."""
    return MarketPast.objects.filter(at__lt=now - KEEP).delete()[0]
