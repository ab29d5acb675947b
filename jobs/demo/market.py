"""The generated market as a feed: the same market for the same seed, told as a list of changes up to now.

Time is cut into blocks counted from 1970; each block is generated whole from the seed and its number, so that what was told
yesterday is told again today, on every machine.
"""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np

from forecasting.feeds.rows import Batch, Observation, OfferKey
from forecasting.generator import DEMO_ZONES, Market, demo_market, generate
from forecasting.series import Series

PROVIDER = "generated"
MACHINE = "v100-1x"
BLOCK_DAYS = 56
FIRST_PAST = dt.timedelta(days=28)
_BLOCK_S = BLOCK_DAYS * 86_400


def generated_batch(settings: Mapping[str, Any], *, since: dt.datetime | None, now: dt.datetime) -> Batch:
    """What has changed after `since` (at first: in the last four weeks) in every zone, and the on-demand prices."""
    first, last = (since or now - FIRST_PAST).timestamp(), now.timestamp()
    batch = Batch()
    for block in range(int(first // _BLOCK_S), int(last // _BLOCK_S) + 1):
        for series in market_block(int(settings["seed"]), block).values():
            batch.observations += _changes(series, first, last)
    if since is None:
        batch.observations += _on_demand(first)
    batch.num_rows = len(batch.observations)
    return batch.tidy()


@functools.lru_cache(maxsize=4)
def market_block(seed: int, block: int) -> dict[str, Series]:
    """Eight weeks of the generated market, by zone."""
    return generate(_placed(block), (seed + block) % 2**32)


def _placed(block: int) -> Market:
    return replace(demo_market(days=BLOCK_DAYS), start_s=float(block * _BLOCK_S))


def _changes(series: Series, first: float, last: float) -> Iterator[Observation]:
    """The ticks after `first` up to `last` at which something changes; the first tick of all counts as a change."""
    assert series.availability is not None
    assert series.price is not None
    key = _key(series.name)
    begin = max(0, int(np.ceil((first - series.start_s) / series.gap_s)))
    end = min(len(series), int((last - series.start_s) // series.gap_s) + 1)
    for tick in range(begin, end):
        same = tick > begin and (
            series.availability[tick] == series.availability[tick - 1] and series.price[tick] == series.price[tick - 1]
        )
        if not same:
            price = Decimal(str(round(float(series.price[tick]), 4)))
            yield Observation(key, series.start_s + tick * series.gap_s, price, int(series.availability[tick]))


def _key(zone: str) -> OfferKey:
    return OfferKey(PROVIDER, zone[:-1], zone, MACHINE)


def _on_demand(at_s: float) -> Iterator[Observation]:
    """One price per region, in force from the beginning."""
    for region, price in {zone.region: zone.on_demand_usd_per_hour for zone in DEMO_ZONES}.items():
        yield Observation(OfferKey(PROVIDER, region, "", MACHINE, "", False), at_s, Decimal(str(price)))
