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
