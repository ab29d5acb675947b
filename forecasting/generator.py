"""A calibrated market for demos and tests: several zones, correlated outages, price regimes, one seed.

Calibrated on figures of real markets, which are read for comparison in the tests and never copied:

* spells of availability are long-tailed (mean about three times the median, coefficient of variation 1.3 to 4.9), 2 to
  15 a day, up between 10 % and 90 % of the time; a gang is all there or not at all more than nine tenths of the time;
* zones of one region move together (correlation about 0.4), regions hardly (about 0.1);
* prices stand still, then step by about a quarter of a percent two to four times a day; they say little about
  availability.

Shape letters: K ticks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forecasting.series import Series

# Spread of the logarithm of spell lengths: mean / median = exp(s^2 / 2) = 3.1.
_SPELL_SIGMA = 1.5
# While a region is tight, an up spell lives this much faster and a down spell this much slower; calm is the reverse.
_TIGHT_UP, _CALM_UP = 3.0, 0.75
_TIGHT_DOWN, _CALM_DOWN = 0.35, 1.4
_CALM_HOURS, _TIGHT_HOURS = 30.0, 9.0
_OUTAGE_HOURS = 1.5
# Price steps: median size, spread of its logarithm, and how strongly a step leans towards the regime's level.
_STEP_MEDIAN, _STEP_SIGMA, _PULL = 0.0025, 0.9, 6.0
_TIGHT_DEARER = 1.12


@dataclass(frozen=True)
class Zone:
    """One offer. up_hours and down_hours: mean spell lengths; daily: share (0..1) by which the hour of day moves them."""

    name: str
    region: str
    capacity: int = 16
    up_hours: float = 5.0
    down_hours: float = 1.5
    daily: float = 0.3
    partial: float = 0.06
    on_demand_usd_per_hour: float = 3.06
    spot_share: float = 0.35
    price_steps_per_day: float = 3.0


@dataclass(frozen=True)
class Market:
    """What to generate. outages_per_week: times when every zone of every region has nothing at all."""

    zones: tuple[Zone, ...]
    days: float = 30.0
    gap_s: float = 300.0
    start_s: float = 1_767_225_600.0
    outages_per_week: float = 0.5


DEMO_ZONES = (
    Zone("us-east-1a", "us-east-1", up_hours=1.8, down_hours=2.4, spot_share=0.31),
    Zone("us-east-1d", "us-east-1", up_hours=2.4, down_hours=2.0, spot_share=0.33),
    Zone("us-west-2a", "us-west-2", up_hours=6.0, down_hours=1.0, spot_share=0.38),
    Zone("us-west-2b", "us-west-2", up_hours=9.0, down_hours=1.2, spot_share=0.40),
    Zone("eu-west-1a", "eu-west-1", up_hours=4.0, down_hours=1.6, spot_share=0.36, on_demand_usd_per_hour=3.305),
    Zone("eu-west-1c", "eu-west-1", up_hours=0.9, down_hours=1.1, spot_share=0.29, on_demand_usd_per_hour=3.305),
)


def demo_market(days: float = 30.0, capacity: int = 16) -> Market:
    """Three regions with two zones each, from scarce to plentiful."""
    return Market(tuple(replace(zone, capacity=capacity) for zone in DEMO_ZONES), days=days)


def generate(market: Market, seed: int) -> dict[str, Series]:
    """One series with availability and price per zone, the same for the same seed. Raises ValueError for an empty market."""
    num_ticks = int(market.days * 86_400 / market.gap_s)
    if not market.zones or num_ticks < 1:
        raise ValueError("a market needs at least one zone and one tick")
    # Every region and zone has its own stream, so that adding a zone does not change the others.
    root = np.random.SeedSequence(seed)
    tight = {
        region: _regimes(np.random.default_rng([*root.generate_state(2), _key(region)]), num_ticks, market.gap_s)
        for region in dict.fromkeys(zone.region for zone in market.zones)
    }
    outage = _outages(np.random.default_rng([*root.generate_state(2), 0]), num_ticks, market)
    found = {}
    for zone in market.zones:
        stream = np.random.default_rng([*root.generate_state(2), _key(zone.name)])
        availability = _availability(stream, zone, market, tight[zone.region])
        availability[outage] = 0
        price = _prices(stream, zone, market.gap_s, tight[zone.region])
        found[zone.name] = Series(zone.name, market.start_s, market.gap_s, availability, price)
    return found


def _key(name: str) -> int:
    return int.from_bytes(name.encode()[:8].rjust(8, b"\0"), "big") + len(name)


def _lognormal(stream: np.random.Generator, mean: float, sigma: float = _SPELL_SIGMA) -> float:
    return float(stream.lognormal(np.log(mean) - sigma**2 / 2, sigma))


def _regimes(stream: np.random.Generator, num_ticks: int, gap_s: float) -> np.ndarray:
    """[K] whether a region is short of capacity."""
    tight = np.zeros(num_ticks, dtype=bool)
    at, is_tight = 0.0, bool(stream.random() < _TIGHT_HOURS / (_TIGHT_HOURS + _CALM_HOURS))
    while at < num_ticks:
        length = _lognormal(stream, _TIGHT_HOURS if is_tight else _CALM_HOURS, 0.8) * 3600 / gap_s
        tight[int(at) : int(at + length)] = is_tight
        at, is_tight = at + max(1.0, length), not is_tight
    return tight


def _outages(stream: np.random.Generator, num_ticks: int, market: Market) -> np.ndarray:
    """[K] whether there is nothing anywhere."""
    outage = np.zeros(num_ticks, dtype=bool)
    for begin in stream.integers(0, num_ticks, stream.poisson(market.outages_per_week * market.days / 7)):
        length = _lognormal(stream, _OUTAGE_HOURS, 0.7) * 3600 / market.gap_s
        outage[begin : begin + max(1, int(length))] = True
    return outage


def _availability(stream: np.random.Generator, zone: Zone, market: Market, tight: np.ndarray) -> np.ndarray:
    """[K] spells whose lives are drawn in hours and used up faster or slower by regime and hour of day."""
    hour = (market.start_s + np.arange(len(tight)) * market.gap_s) / 3600 % 24
    busy = 1 + zone.daily * np.cos((hour - 16) * np.pi / 12)
    step = market.gap_s / 3600
    used_up = np.cumsum(np.where(tight, _TIGHT_UP, _CALM_UP) * busy * step)
    used_down = np.cumsum(np.where(tight, _TIGHT_DOWN, _CALM_DOWN) / busy * step)
    counts = np.zeros(len(tight), dtype=np.int64)
    at, is_up = 0, bool(stream.random() < zone.up_hours / (zone.up_hours + zone.down_hours))
    while at < len(tight):
        used = used_up if is_up else used_down
        life = _lognormal(stream, zone.up_hours if is_up else zone.down_hours)
        end = max(at + 1, int(np.searchsorted(used, (used[at - 1] if at else 0.0) + life)))
        if is_up:
            counts[at:end] = _level(stream, zone)
        at, is_up = end, not is_up
    return counts


def _level(stream: np.random.Generator, zone: Zone) -> int:
    if zone.capacity > 1 and stream.random() < zone.partial:
        return int(stream.integers(1, zone.capacity))
    return zone.capacity


def _prices(stream: np.random.Generator, zone: Zone, gap_s: float, tight: np.ndarray) -> np.ndarray:
    """[K] USD per unit-hour: steps at random times, leaning towards the regime's level, never above on-demand."""
    rate = zone.price_steps_per_day * gap_s / 86_400 * np.where(tight, 2.0, 0.8)
    moments = np.flatnonzero(stream.random(len(tight)) < rate)
    usual = np.log(zone.spot_share)
    level, path = usual, np.full(len(tight), usual)
    for moment in moments:
        goal = usual + (np.log(_TIGHT_DEARER) if tight[moment] else 0.0)
        upwards = stream.random() < 1 / (1 + np.exp(-_PULL * (goal - level)))
        level += (1 if upwards else -1) * _STEP_MEDIAN * float(np.exp(stream.normal(0, _STEP_SIGMA)))
        path[moment:] = level
    return np.round(zone.on_demand_usd_per_hour * np.clip(np.exp(path), 0.05, 1.0), 4)
