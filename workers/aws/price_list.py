"""On-demand prices of a region by Amazon's price list, asked once a day; a list that does not answer is left alone for a while."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from forecasting.feeds import aws_prices
from forecasting.feeds.live import FeedUnavailable

EVERY = dt.timedelta(days=1)
AGAIN = dt.timedelta(minutes=15)  # after no answer
Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True)
class Listed:
    """USD per hour by instance type, and what is wrong with the list; `at`: when it was asked."""

    at: dt.datetime
    prices: dict[str, Decimal] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    is_answer: bool = True


@dataclass
class PriceList:
    """One a process."""

    client: Callable[[], Any] = aws_prices.connect
    known: dict[Key, Listed] = field(default_factory=dict)

    def prices(self, region: str, instance_types: Sequence[str], now: dt.datetime) -> Listed:
        """What the list said last, or says now. What it has said once counts until it says something else."""
        key = (region, tuple(instance_types))
        known = self.known.get(key)
        if known is None or now - known.at >= (EVERY if known.is_answer else AGAIN):
            known = self.known[key] = self._ask(key, known, now)
        return known

    def _ask(self, key: Key, before: Listed | None, now: dt.datetime) -> Listed:
        region, kinds = key
        try:
            batch = aws_prices.fetch(self.client(), region, kinds, now_s=now.timestamp())
        except FeedUnavailable as error:
            return Listed(now, before.prices if before else {}, (str(error),), is_answer=False)
        found = {row.key.instance_type: row.price_usd_per_hour for row in batch.observations if row.price_usd_per_hour}
        rejected = tuple(f"{row.where}: {row.reason}" for row in batch.quarantine)
        return Listed(now, found, (*batch.notes, *rejected))
