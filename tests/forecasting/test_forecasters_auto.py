"""The choice by rolling origins: persistence unless another model was clearly better; scores kept; bands that hold."""

import dataclasses
import json

import numpy as np
import pytest

from forecasting.forecasters import make
from forecasting.forecasters.auto import choose, choose_distribution
from forecasting.forecasters.prepare import prepare
from forecasting.forecasters.scores import Backtest, backtest, fair_coverage, losses, origins_of
from forecasting.generator import demo_market, generate
from forecasting.series import Series, load_traces
from tests.forecasting.test_series import real

DENSE = tuple(np.linspace(0.01, 0.99, 50))


def case(model, mae, *pinball):
    mae = np.asarray(mae, dtype=float)
    loss = np.asarray(pinball[0] if pinball else mae, dtype=float)
    return Backtest(model, mae, loss, np.ones(len(mae)), 0.1, None)


# A seasonal naive a little better than the persistence of these tests: there is a daily cycle.
CYCLE = case("seasonal_naive", [0.99] * 12)


def test_a_small_or_lucky_gain_does_not_replace_persistence():
    base = case("persistence", [1.0] * 12)
    small = case("ets", [0.98] * 12)
    lucky = case("arima", [0.1, 0.1, *[1.0] * 10])
    assert choose([base, small, lucky, CYCLE], 8)[0] == "persistence"


def test_a_trend_without_a_daily_cycle_is_not_trusted_before_many_horizons_have_shown_it():
    tests = [case("persistence", np.linspace(1, 1.2, 30)), case("ets", np.linspace(0.5, 0.6, 30))]
    name, reason = choose(tests, 8)
    assert name == "persistence"
    assert "no daily cycle" in reason
    assert choose(tests, 25)[0] == "ets"


def test_a_clear_gain_replaces_persistence_and_says_by_how_much():
    name, reason = choose(
        [case("persistence", np.linspace(1, 1.2, 12)), case("ets", np.linspace(0.5, 0.6, 12)), CYCLE], 8
    )
    assert name == "ets"
    assert reason == "50% less error than persistence over 12 rolling origins"


def test_a_model_that_had_to_fall_back_is_never_chosen():
    better = dataclasses.replace(case("ets", [0.1] * 12), fallback="ets failed")
    assert choose([case("persistence", [1.0] * 12), better], 8)[0] == "persistence"


def test_quantiles_are_those_of_the_model_with_the_lowest_quantile_loss():
    base = case("persistence", [1.0] * 12, [1.0] * 12)
    worse_line = case("hazard", [1.5] * 12, np.linspace(0.6, 0.7, 12))
    name, reason = choose_distribution([base, worse_line, case("seasonal_naive", [1.0] * 12, [0.99] * 12)])
    assert name == "hazard"
    assert reason == "35% less quantile loss than persistence over 12 rolling origins"
    assert choose_distribution([base, case("hazard", [1.0] * 12, [1.1] * 12)])[0] == "persistence"


def test_every_model_is_scored_on_the_same_origins_and_the_scores_are_strict_json():
    hours = np.arange(24 * 16)
    auto = make("auto").fit(
        list(10 + 3 * np.sin(hours * np.pi / 12) + np.random.default_rng(0).normal(0, 0.3, len(hours)))
    )
    assert auto.chosen != "persistence"
    assert {score.model for score in auto.scores} == {"persistence", "seasonal_naive", "ets", "arima"}
    assert len({score.num_origins for score in auto.scores}) == 1
    assert next(score.mase for score in auto.scores if score.model == "persistence") == pytest.approx(1.0)
    json.dumps([score.as_dict() for score in auto.scores], allow_nan=False)


def test_a_random_walk_keeps_persistence_and_forecasts_the_same():
    values = 5 + np.cumsum(np.random.default_rng(1).normal(0, 0.02, 14 * 24))
    auto = make("auto").fit(list(values))
    assert auto.chosen == "persistence"
    assert np.array_equal(auto.predict(24).mean, make("persistence").fit(list(values)).predict(24).mean)


def test_counts_get_the_line_of_one_model_and_the_distribution_of_another():
    series = generate(demo_market(days=20), seed=2)["us-west-2a"]
    auto = make("auto", "availability").fit(series)
    forecast = auto.predict(100)
    assert (auto.chosen, auto.chosen_line) == ("hazard", "persistence")
    assert np.array_equal(forecast.mean, np.full(100, series.availability[-1]))
    assert np.array_equal(forecast.quantiles, make("hazard").fit(series).predict(100).quantiles)
    auto.update(0)
    assert auto.predict(2).mean.tolist() == [0, 0]


def test_origins_leave_a_whole_horizon_behind_them():
    assert origins_of(100, 10, 5).max() == 90
    assert len(origins_of(5, 10, 5)) == 0


def test_a_backtest_never_sees_the_values_it_is_scored_on():
    values = np.random.default_rng(0).normal(5, 1, 200)
    origins = np.array([100, 150])
    changed = values.copy()
    changed[160:] += 50
    first = backtest(make("ets"), prepare(list(values)), origins, 10)
    second = backtest(make("ets"), prepare(list(changed)), origins, 10)
    assert np.array_equal(first.mae, second.mae)


def test_fair_coverage_counts_a_value_on_a_band_of_no_width_by_its_mass():
    forecast = make("persistence").fit([2.0] * 50).predict(10, DENSE)
    assert fair_coverage(forecast, np.full(10, 2.0)) == pytest.approx(0.8, abs=0.03)
    assert losses(make("persistence").fit([2.0] * 50).predict(10), np.full(10, 2.0))[2] == 1.0


def test_the_80_percent_band_covers_between_75_and_85_percent_of_real_prices():
    found = load_traces(real("prices", "aws_spot_price_p2_p3.csv"))
    rng = np.random.default_rng(0)
    covered = []
    for series in list(found.values()):
        for end in rng.integers(4032, len(series) - 288, 6):
            past, truth = series.price[end - 4032 : end], series.price[end : end + 288]
            if np.ptp(past):
                forecast = make("persistence").fit(Series("p", 0.0, 300.0, price=past)).predict(288, DENSE)
                covered.append(fair_coverage(forecast, truth))
    assert len(covered) > 150
    assert 0.75 <= np.mean(covered) <= 0.85


def test_the_chosen_model_is_not_worse_than_persistence_on_real_prices():
    found = load_traces(real("prices", "aws_spot_price_p2_p3.csv"))
    liveliest = sorted(found.values(), key=lambda series: -np.count_nonzero(np.diff(series.price)))
    for series in liveliest[:6:2]:
        ratio = []
        for end in (4032, len(series) // 2):
            past, truth = series.window(end - 4032, end), series.price[end : end + 288]
            chosen = make("auto").fit(past).predict(288).mean
            ratio.append((np.abs(truth - chosen).mean(), np.abs(truth - past.price[-1]).mean()))
        ours, base = np.mean(ratio, axis=0)
        assert ours <= base * 1.01, series.name
