"""What was quoted for an offer since a machine of it began, read once for all machines and looks of a while.

The watch looks at every machine each second; quotes come in every few minutes at most.
"""

from __future__ import annotations

import datetime as dt
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from jobs.models import Offer, Quote
from jobs.selectors.market_steps import quotes_between

# So late a machine that lives learns of a new price; the last look at one that has ended reads anew.
READ_EVERY_S = 10.0


@dataclass
class _Page:
    """The quotes of an offer from `since` on, the one in force then first. `wanted`: the earliest start asked for meanwhile."""

    since: dt.datetime
    read_at: float  # monotonic seconds
    quotes: list[Quote]
    wanted: dt.datetime


@dataclass
class PriceBook:
    """One a process. Two threads that read at once read twice, and nothing worse."""

    clock: Callable[[], float] = time.monotonic
    pages: dict[uuid.UUID, _Page] = field(default_factory=dict)

    def prices(
        self, offer: Offer, *, start: dt.datetime, end: dt.datetime | None, is_over: bool = False
    ) -> list[list[Any]]:
        """The offer's prices from `start` to `end` (None: now), as `Instance.prices`."""
        prices: list[list[Any]] = []
        for quote in self._page(offer, start, is_over=is_over).quotes:
            price = quote.price_usd_per_hour
            if price is None or (end is not None and quote.at > end):
                continue
            if quote.at <= start:
                prices = [[start.timestamp(), str(price)]]
            elif not prices or prices[-1][1] != str(price):
                prices.append([quote.at.timestamp(), str(price)])
        return prices

    def _page(self, offer: Offer, start: dt.datetime, *, is_over: bool) -> _Page:
        page, now_s = self.pages.get(offer.uuid), self.clock()
        if page is not None and not is_over and page.since <= start and now_s - page.read_at < READ_EVERY_S:
            page.wanted = min(page.wanted, start)
            return page
        since = min(start, page.wanted) if page is not None else start
        read = quotes_between(offers=[offer], start=since, end=timezone.now()).get(offer.pk, [])
        page = _Page(since, now_s, read, start)
        self.pages[offer.uuid] = page
        return page
