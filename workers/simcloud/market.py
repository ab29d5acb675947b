"""Prices and capacity by the wall clock: a generated market (or a file) that runs `factor` times as fast, round and round.

Prices are quoted in USD per hour of the *wall clock*: the market's own price times the factor, so that whoever keeps a machine
for a minute pays what the market would have charged for that much of its own time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from forecasting.generator import DEMO_ZONES, Market, Zone, generate
from workers.simcloud.options import MarketOptions

MACHINE = "v100-1x"


class OfferName(NamedTuple):
    """What can be asked for. On-demand is offered by region, spot by zone."""

    region: str
    zone: str
    is_spot: bool


class Quote(NamedTuple):
    """In force from `at_s`; `availability` is None where nobody counts."""

    offer: OfferName
    at_s: float
    price_usd_per_hour: Decimal
    availability: int | None


@dataclass(frozen=True)
class _Lane:
    prices: list[Decimal]
    availability: list[int] | None


class SimMarket:
    """The market as it was and will be; `origin_s` is the wall time at which its past ends, `tick_s` how long a tick lasts."""

    def __init__(self, options: MarketOptions, origin_s: float, tick_s: float | None = None) -> None:
        self.options = options
        self.origin_s = origin_s
        self.gap_s, self.past_ticks, self._lanes = _lanes(options)
        self.tick_s = tick_s or self.gap_s / options.factor
        self.num_ticks = len(next(iter(self._lanes.values())).prices)

    @property
    def offers(self) -> list[OfferName]:
        return list(self._lanes)

    def quote(self, offer: OfferName, at_s: float) -> Quote:
        """What holds at `at_s`. KeyError for an offer that there is not."""
        return self._at(offer, self._tick(at_s))

    def changes(self, offer: OfferName, after_s: float, until_s: float) -> Iterator[Quote]:
        """The quotes that began after `after_s` and not after `until_s`, and differ from the one before."""
        first = max(self._tick(after_s), -self.past_ticks)
        before = self._at(offer, first)
        if self._start(first) > after_s:
            yield before
        for tick in range(first + 1, self._tick(until_s) + 1):
            now = self._at(offer, tick)
            if now[2:] != before[2:]:
                yield now
            before = now

    def _tick(self, at_s: float) -> int:
        return int((at_s - self.origin_s) // self.tick_s)

    def _start(self, tick: int) -> float:
        return round(self.origin_s + tick * self.tick_s, 6)

    def _at(self, offer: OfferName, tick: int) -> Quote:
        lane = self._lanes[offer]
        place = (tick + self.past_ticks) % self.num_ticks
        count = None if lane.availability is None else lane.availability[place]
        return Quote(offer, self._start(tick), lane.prices[place], count)


def _lanes(options: MarketOptions) -> tuple[float, int, dict[OfferName, _Lane]]:
    """(seconds of a tick in the market, ticks before the origin, offers)."""
    if options.trace:
        raw = json.loads(Path(options.trace).read_text())
        return float(raw["gap_s"]), int(raw.get("past_ticks", 0)), dict(_traced(raw, options.factor))
    market = Market(
        _zones(options), days=options.past_days + options.days, start_s=0.0, outages_per_week=options.outages_per_week
    )
    found: dict[OfferName, _Lane] = {}
    for zone, series in zip(market.zones, generate(market, options.seed).values(), strict=True):
        assert series.availability is not None
        assert series.price is not None
        prices = [_usd(price, options.factor) for price in series.price]
        found[OfferName(zone.region, zone.name, True)] = _Lane(prices, [int(n) for n in series.availability])
        dear = _usd(zone.on_demand_usd_per_hour, options.factor)
        found.setdefault(OfferName(zone.region, "", False), _Lane([dear] * len(prices), None))
    return market.gap_s, int(options.past_days * 86_400 / market.gap_s), found


def _zones(options: MarketOptions) -> tuple[Zone, ...]:
    chosen = [replace(zone, capacity=options.capacity) for zone in DEMO_ZONES[: options.zones]]
    if options.up_hours:
        chosen = [replace(zone, up_hours=options.up_hours) for zone in chosen]
    if options.down_hours:
        chosen = [replace(zone, down_hours=options.down_hours) for zone in chosen]
    return tuple(chosen)


def _traced(raw: dict[str, Any], factor: float) -> Iterator[tuple[OfferName, _Lane]]:
    """From `{"gap_s": 300, "past_ticks": 10, "zones": {NAME: {…}}}`; a zone has `region`, `on_demand_usd_per_hour` and the lists
    `availability` and `price` (or one price for all ticks)."""
    for name, zone in raw["zones"].items():
        counts = [int(n) for n in zone["availability"]]
        given = zone["price"] if isinstance(zone["price"], list) else [zone["price"]] * len(counts)
        if len(given) != len(counts):
            raise ValueError(f"zone {name}: {len(given)} prices for {len(counts)} availabilities")
        yield OfferName(zone["region"], name, True), _Lane([_usd(price, factor) for price in given], counts)
        dear = _usd(zone["on_demand_usd_per_hour"], factor)
        yield OfferName(zone["region"], "", False), _Lane([dear] * len(counts), None)


def _usd(price: float, factor: float) -> Decimal:
    return round(Decimal(str(float(price))) * Decimal(str(factor)), 6)
