"""The semi-Markov availability forecaster: spells remembered, distributions whole, better than persistence."""

import time

import numpy as np
import pytest

from forecasting.forecasters import make
from forecasting.forecasters.hazard import Hazard, ages, learn
from forecasting.forecasters.prepare import prepare
from forecasting.generator import demo_market, generate
from forecasting.series import Series, load_trace
from tests.forecasting.test_series import real


def counts(values, gap_s=300.0):
    return Series("a", 1.7e9, gap_s, np.asarray(values))


def test_ages_count_the_ticks_of_the_present_spell():
    assert ages(np.array([1, 1, 0, 0, 0, 1])).tolist() == [1, 2, 1, 2, 3, 1]


def test_chances_sum_to_one_and_the_mean_stays_within_what_was_seen():
    rng = np.random.default_rng(0)
    forecaster = make("hazard").fit(counts(np.repeat(rng.integers(0, 17, 300), rng.integers(1, 30, 300))))
    chances = forecaster.probabilities(500)
    assert chances.sum(axis=1) == pytest.approx(np.ones(500))
    assert (chances >= 0).all()
    forecast = forecaster.predict(500)
    assert forecast.mean.min() >= 0
    assert forecast.mean.max() <= 16
    assert np.array_equal(forecast.quantiles, np.round(forecast.quantiles))


def test_an_old_spell_is_expected_to_last_longer_than_a_young_one():
    rng = np.random.default_rng(2)
    lengths = np.maximum(1, rng.lognormal(1.5, 1.5, 400).astype(int))
    values = np.repeat(np.arange(400) % 2, lengths)
    young, old = np.append(values, [1]), np.append(values, np.ones(300, dtype=int))
    chance = [make("hazard").fit(counts(path)).survival(24)[-1] for path in (young, old)]
    assert chance[1] > chance[0] + 0.15


def test_survival_never_rises_and_starts_near_one_after_a_long_spell():
    values = np.repeat([0, 4, 0, 4, 0, 4], [20, 200, 30, 150, 10, 180])
    survival = make("hazard").fit(counts(values)).survival(300)
    assert (np.diff(survival) <= 1e-12).all()
    assert survival[0] > 0.95


def test_a_series_that_never_changed_is_not_forecast_as_certain():
    forecast = make("hazard").fit(counts([1] * 300)).predict(48)
    assert forecast.fallback is None
    assert forecast.level(0.5).tolist() == [1.0] * 48
    assert 0.5 < forecast.mean[-1] < forecast.mean[0] < 1.0


def test_a_daily_cycle_is_found_where_there_is_one_and_not_in_noise():
    hours = np.arange(12 * 24 * 40) // 12 % 24
    rng = np.random.default_rng(3)
    cyclic = (rng.random(len(hours)) > np.where((hours > 8) & (hours < 18), 0.5, 0.02)).astype(int)
    flat = (rng.random(len(hours)) > 0.2).astype(int)
    assert np.ptp(learn(prepare(counts(cyclic))).by_hour) > 0.2
    assert np.ptp(learn(prepare(counts(flat))).by_hour) < 0.2


@pytest.mark.parametrize("num", [0, 1, 2, 7, 8, 20])
def test_short_availability_gives_a_forecast_or_a_declared_fallback(num):
    forecast = make("hazard").fit(counts([1, 0] * 10).window(0, num)).predict(12)
    assert np.isfinite(forecast.mean).all()
    assert np.isfinite(forecast.quantiles).all()
    assert (forecast.fallback is None) == (num >= 8)


def test_many_distinct_counts_are_merged_into_a_few_levels():
    values = np.random.default_rng(0).integers(0, 500, 2000)
    forecaster = make("hazard").fit(counts(values))
    assert len(forecaster.levels) <= 24
    assert 200 < forecaster.predict(50).mean[-1] < 300


def test_a_month_of_five_minutes_is_learnt_and_forecast_for_a_week_well_within_a_second():
    series = generate(demo_market(days=30), seed=1)["us-east-1a"]
    make("hazard").fit(series.window(0, 500)).predict(5)
    forecaster, began = make("hazard"), time.process_time()
    forecaster.fit(series).predict(2016)
    fitted = time.process_time()
    forecaster.update(0)
    assert fitted - began < 1.0
    assert time.process_time() - fitted < 0.02


def skill(series, num_origins=12):
    """Mean quantile loss of hazard over that of persistence, a day ahead, over origins in the last two thirds."""
    from forecasting.forecasters.scores import backtest

    history = prepare(series, "availability")
    horizon = round(86_400 / series.gap_s)
    origins = np.unique(np.linspace(len(history) // 3, len(history) - horizon, num_origins).astype(int))
    loss = [
        backtest(make(name, "availability"), history, origins, horizon).pinball.mean()
        for name in ("hazard", "persistence")
    ]
    return loss[0] / loss[1]


def test_the_distribution_beats_persistence_on_generated_zones():
    ratios = [skill(series) for series in list(generate(demo_market(days=30), seed=5).values())[::2]]
    assert np.mean(ratios) < 0.9


def test_the_distribution_beats_persistence_on_real_zones():
    zones = ("us-east-1a", "us-east-2a", "us-west-2b")
    paths = [real("skypilot", "2023-02-15-1node", f"{zone}_v100_1.json") for zone in zones]
    assert np.mean([skill(load_trace(path)) for path in paths]) < 0.9


def test_a_hazard_forecaster_reads_the_availability_even_when_there_is_a_price():
    series = Series("a", 1.7e9, 300.0, np.array([1] * 50), np.linspace(1, 2, 50))
    assert Hazard().fit(series).predict(3).level(0.5).tolist() == [1.0, 1.0, 1.0]


def coverage(series, num_origins=8):
    """Fair coverage of the 80 % band a day ahead, each forecast from its own past."""
    from forecasting.forecasters.scores import fair_coverage

    values, horizon = series.availability, round(86_400 / series.gap_s)
    dense = tuple(np.linspace(0.01, 0.99, 50))
    origins = np.linspace(len(series) // 3, len(series) - horizon, num_origins).astype(int)
    found = [make("hazard").fit(series.window(0, int(at))).predict(horizon, dense) for at in origins]
    truth = [values[at : at + horizon].astype(float) for at in origins]
    return np.mean([fair_coverage(*pair) for pair in zip(found, truth, strict=True)])


@pytest.mark.parametrize("zone", ["us-east-2b", "us-west-2a"])
def test_the_80_percent_band_holds_on_real_traces_whose_last_days_are_unlike_their_first(zone):
    series = load_trace(real("skypilot", "2023-08-27-16node", f"{zone}_v100_1.json"))
    assert 0.75 <= coverage(series) <= 0.85


def test_a_market_that_turned_gets_a_wider_band_than_one_that_stays_as_it_is():
    chance = np.random.default_rng(6).random(12 * 24 * 14)
    steady, half = (chance < 0.5).astype(int), len(chance) // 2
    turned = (chance < np.where(np.arange(len(chance)) < half, 0.95, 0.3)).astype(int)
    stretches = [make("hazard").fit(counts(path))._stretch for path in (steady, turned)]
    assert stretches[0] == 1.5
    assert stretches[1] >= 4.0


def test_widened_levels_keep_their_order_and_the_median():
    from forecasting.forecasters.calibration import widened

    lines = widened((0.1, 0.25, 0.5, 0.75, 0.9), 48, 100, 2.5)
    assert (np.diff(lines, axis=0) >= 0).all()
    assert lines[2] == pytest.approx(np.full(48, 0.5))
    assert (np.diff(lines[0]) <= 0).all()
    assert lines[0, -1] < 0.5 * lines[0, 0]
    assert lines.min() > 0
    assert lines.max() < 1
