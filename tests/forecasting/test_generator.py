"""The market generator: same seed, same market; figures within those of real markets."""

from dataclasses import replace

import numpy as np
import pytest

from forecasting.generator import DEMO_ZONES, Market, demo_market, generate


@pytest.fixture(scope="module")
def market():
    return generate(demo_market(days=60), seed=3)


def spells_h(series):
    up = (series.availability > 0).astype(int)
    edges = np.concatenate([[0], np.flatnonzero(np.diff(up)) + 1, [len(up)]])
    lengths = np.diff(edges) * series.gap_s / 3600
    return lengths[up[edges[:-1]] == 1], lengths[up[edges[:-1]] == 0]


def test_the_same_seed_gives_the_same_market_and_another_seed_another(market):
    again, other = generate(demo_market(days=60), seed=3), generate(demo_market(days=60), seed=4)
    for name, series in market.items():
        assert np.array_equal(series.availability, again[name].availability)
        assert np.array_equal(series.price, again[name].price)
        assert not np.array_equal(series.availability, other[name].availability)


def test_another_zone_does_not_change_the_others():
    small, large = Market(DEMO_ZONES[:2], days=5), Market(DEMO_ZONES, days=5)
    a, b = generate(small, 1), generate(large, 1)
    assert all(np.array_equal(a[name].price, b[name].price) for name in a)
    assert all(np.array_equal(a[name].availability, b[name].availability) for name in a)


def test_spells_are_long_tailed_and_as_frequent_as_in_real_zones(market):
    for series in market.values():
        ups, downs = spells_h(series)
        assert 0.08 < (series.availability > 0).mean() < 0.95
        assert 1.5 <= len(ups) / 60 <= 16
        assert ups.mean() > 1.8 * np.median(ups)
        assert 1.2 < ups.std() / ups.mean() < 5
        assert 1.0 < downs.std() / downs.mean() < 5


def test_a_gang_is_mostly_all_there_or_not_at_all(market):
    for series in market.values():
        assert np.isin(series.availability, (0, 16)).mean() > 0.85
        assert series.availability.max() == 16


def test_zones_of_a_region_move_together_and_regions_hardly(market):
    table = np.corrcoef([series.availability for series in market.values()])
    near = np.mean([table[0, 1], table[2, 3], table[4, 5]])
    far = np.mean([table[i, j] for i in range(6) for j in range(6) if i // 2 != j // 2])
    assert near > 0.1 > far
    assert near > far + 0.08


def test_prices_step_a_few_times_a_day_by_small_amounts_and_stay_below_on_demand(market):
    for zone, series in zip(DEMO_ZONES, market.values(), strict=True):
        steps = np.diff(np.log(series.price))
        moved = steps[steps != 0]
        assert 1.5 < len(moved) / 60 < 6
        assert 0.001 < np.median(np.abs(moved)) < 0.006
        assert series.price.min() > 0
        assert series.price.max() <= zone.on_demand_usd_per_hour


def test_price_says_little_about_availability(market):
    for series in market.values():
        assert abs(np.corrcoef(series.price, series.availability)[0, 1]) < 0.45


def test_a_total_outage_takes_every_zone_at_once():
    zones = tuple(replace(zone, up_hours=1e6, down_hours=0.01) for zone in DEMO_ZONES[:3])
    found = generate(Market(zones, days=30, outages_per_week=2), 5)
    down = np.array([series.availability == 0 for series in found.values()])
    assert down.all(axis=0).sum() > 20


def test_the_hour_of_day_matters_where_it_is_asked_to():
    zone = replace(DEMO_ZONES[1], daily=0.9)
    series = generate(Market((zone,), days=120, outages_per_week=0), 2)["us-east-1d"]
    hour = (series.start_s + np.arange(len(series)) * series.gap_s) // 3600 % 24
    by_hour = np.array([(series.availability[hour == h] > 0).mean() for h in range(24)])
    assert by_hour[4:7].mean() > by_hour[16:20].mean() + 0.05


def test_an_empty_market_is_refused():
    with pytest.raises(ValueError, match="at least one zone"):
        generate(Market(()), 1)
