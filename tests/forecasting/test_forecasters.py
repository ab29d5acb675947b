"""Forecasters never raise, never give NaN or a negative price, and say when another model had to answer."""

import datetime as dt
import math
import time
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecasting.forecasters import LEVELS, make
from forecasting.forecasters.base import GuardedForecaster
from forecasting.forecasters.prepare import prepare
from forecasting.series import Series

CLASSIC = ("persistence", "seasonal_naive", "ets", "arima", "auto")
DAY = 288


def noise(num, seed=0):
    return np.random.default_rng(seed).normal(0, 1, num)


def walk(num, seed=0, start=1.0):
    steps = np.random.default_rng(seed).normal(0, 0.003, num) * (np.random.default_rng(seed + 1).random(num) < 0.03)
    return start * np.exp(np.cumsum(steps))


def usable(forecast, horizon=24):
    """The forecast, after the checks that hold for every forecast of every model."""
    assert forecast.mean.shape == (horizon,)
    assert forecast.quantiles.shape == (len(forecast.levels), horizon)
    assert np.isfinite(forecast.mean).all()
    assert np.isfinite(forecast.quantiles).all()
    assert (forecast.mean >= 0).all()
    assert (forecast.quantiles >= 0).all()
    assert (np.diff(forecast.quantiles, axis=0) >= -1e-12).all()
    return forecast


@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("num", [*range(13), 23, 24, 30, 47, 48, 60])
def test_any_number_of_points_gives_a_finite_forecast_or_a_declared_fallback(name, num):
    forecast = usable(make(name).fit(list(10 + noise(num))).predict(24))
    assert num or "nothing is known" in forecast.fallback
    assert forecast.model == name or name == "auto" or forecast.fallback


@pytest.mark.parametrize("name", CLASSIC)
def test_a_constant_price_is_forecast_exactly_with_a_band_of_no_width(name):
    forecast = usable(make(name).fit([0.3565] * 200).predict(24))
    assert forecast.fallback is None
    assert forecast.mean == pytest.approx(np.full(24, 0.3565), abs=1e-12)
    assert float(np.ptp(forecast.quantiles, axis=0).max()) < 1e-9


ODD = {
    "one NaN in the middle": [*walk(60), math.nan, *walk(60)],
    "one infinity": [*walk(60), math.inf, *walk(60)],
    "an exact zero": [*walk(60), 0.0, *walk(60)],
    "zeros only": [0.0] * 100,
    "negative values": [*walk(60), -1.0, *walk(60)],
    "Decimal": [Decimal(str(round(value, 4))) for value in walk(100)],
    "text": [f" {value:.4f} " for value in walk(100)],
    "text that is no number": ["n/a", *(f"{value:.4f}" for value in walk(100)), "", None],
    "only missing": [None] * 50,
    "huge": list(walk(100) * 1e12),
    "tiny": list(walk(100) * 1e-9),
    "falling to nothing": list(np.linspace(5, 0.01, 100)),
    "one spike": [*[1.0] * 80, 500.0, *[1.0] * 20],
    "alternating": [1.0, 2.0] * 60,
}


@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("kind", ODD)
def test_odd_values_never_break_a_forecast(name, kind):
    usable(make(name).fit(ODD[kind]).predict(24))


def shuffled():
    times = [dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=i) for i in range(200)]
    rows = list(zip(times, walk(200), strict=True))
    return [rows[index] for index in np.random.default_rng(1).permutation(200)]


CLOCKS = {
    "unsorted": shuffled(),
    "duplicated": [row for row in shuffled() for _ in range(2)],
    "irregular": [(1.7e9 + 3600 * i + 900 * math.sin(i), 1 + 0.01 * math.sin(i)) for i in range(150)],
    "gappy": [(1.7e9 + 3600 * i + (86_400 * 5 if i > 70 else 0), 1 + 0.01 * math.sin(i)) for i in range(150)],
    "one time only": [(1.7e9, 1.0)] * 20,
    "a time from another century": [(0.0, 1.0), *((1.7e9 + 3600 * i, 1.0 + i / 1000) for i in range(100))],
    "unreadable times": [("yesterday", 1.0), *((1.7e9 + 3600 * i, 1.0 + i / 1000) for i in range(60))],
    "text times": [(f"2026-01-{1 + i // 24:02d}T{i % 24:02d}:00:00Z", str(1 + i / 1000)) for i in range(100)],
}


@pytest.mark.parametrize("name", CLASSIC)
@pytest.mark.parametrize("kind", CLOCKS)
def test_odd_times_never_break_a_forecast(name, kind):
    usable(make(name).fit(CLOCKS[kind]).predict(24))


def test_unsorted_and_duplicated_rows_are_put_in_order_and_said():
    history = prepare([(7200.0, 3.0), (0.0, 1.0), (3600.0, 9.0), (3600.0, 2.0)])
    assert history.values.tolist() == [1.0, 2.0, 3.0]
    assert any("repeated times" in warning for warning in history.warnings)
    assert any("sorted" in warning for warning in history.warnings)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Paris"])
def test_a_pandas_series_over_the_end_of_summer_time_is_an_even_history(zone):
    index = pd.date_range("2026-10-24", periods=80, freq="h", tz=zone)
    history = prepare(pd.Series(range(80), index=index))
    assert history.gap_s == 3600
    assert history.values.tolist() == list(range(80))


def test_too_high_an_order_for_nineteen_noisy_points_ends_in_a_forecast_within_the_budget():
    began = time.perf_counter()
    usable(make("arima").fit(list(5 + noise(19, 7))).predict(24))
    assert time.perf_counter() - began < 2.0


def test_a_falling_price_is_never_forecast_below_zero():
    for name in CLASSIC:
        forecast = usable(make(name).fit(list(np.linspace(3, 0.02, 240))).predict(240), 240)
        assert forecast.mean.min() >= 0


class Slow(GuardedForecaster):
    """Misbehaves in the way the test asks for."""

    name = "slow"

    def __init__(self, action):
        super().__init__(time_budget_s=0.05)
        self.action = action

    def _learn(self):
        self.action()

    def _centre(self, horizon):
        return np.full(horizon, np.nan)

    def _errors(self, ahead):
        return np.zeros(3)


def test_a_model_that_gives_nan_is_replaced_by_persistence_with_the_reason():
    forecast = usable(Slow(lambda: None).fit([1.0, 2.0, 3.0]).predict(5), 5)
    assert forecast.fallback == "the model's forecast was not finite"
    assert forecast.model == "persistence"


def test_a_model_that_raises_is_replaced_by_persistence_with_the_reason():
    def fail():
        raise np.linalg.LinAlgError("SVD did not converge")

    forecast = usable(Slow(fail).fit([1.0, 2.0, 3.0]).predict(5), 5)
    assert forecast.fallback == "slow failed: SVD did not converge"


def test_warnings_of_a_fit_are_kept_with_the_forecast():
    def warn():
        import warnings

        warnings.warn("did not converge", RuntimeWarning, stacklevel=1)

    assert "did not converge" in Slow(warn).fit([1.0, 2.0, 3.0]).predict(5).warnings


def test_an_unfitted_forecaster_says_so_and_a_bad_argument_is_refused():
    assert "not fitted yet" in make("ets").predict(3).fallback
    with pytest.raises(ValueError, match="between 0 and 1"):
        make("ets").fit([1, 2]).predict(3, (0.1, 1.5))
    with pytest.raises(ValueError, match="there are persistence"):
        make("oracle")


@pytest.mark.parametrize("name", CLASSIC)
def test_fourteen_days_of_five_minutes_are_fitted_within_a_second_and_updated_in_milliseconds(name):
    series = Series("p", 1.7e9, 300.0, price=walk(14 * DAY))
    make(name).fit(series.window(0, 600)).predict(10)  # imports and first calls do not count
    forecaster = make(name)
    began = time.process_time()
    usable(forecaster.fit(series).predict(DAY), DAY)
    fitted = time.process_time()
    forecaster.update(1.0)
    assert fitted - began < 1.0
    assert time.process_time() - fitted < 0.02


@pytest.mark.parametrize("name", CLASSIC)
def test_an_update_moves_the_forecast_to_the_new_values(name):
    forecaster = make(name).fit(Series("p", 1.7e9, 300.0, price=walk(4 * DAY)))
    before = forecaster.predict(3)
    forecaster.update([1.3] * 5)
    after = usable(forecaster.predict(3), 3)
    assert after.mean[0] == pytest.approx(1.3, abs=0.15) or name == "seasonal_naive"
    assert after.start_s == before.start_s + 5 * 300


@pytest.mark.parametrize("name", CLASSIC)
def test_updates_with_odd_values_keep_the_forecast_usable(name):
    forecaster = make(name).fit(list(walk(100)))
    forecaster.update([None, "x", math.nan, -3, Decimal("1.1")])
    usable(forecaster.predict(24))
    forecaster.update([])
    usable(forecaster.predict(24))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.one_of(st.floats(), st.none(), st.integers(-5, 50), st.text(max_size=3)), max_size=60))
def test_persistence_and_seasonal_naive_take_any_list(values):
    for name in ("persistence", "seasonal_naive"):
        forecast = make(name).fit(values).predict(7)
        assert np.isfinite(forecast.mean).all()
        assert np.isfinite(forecast.quantiles).all()


@pytest.mark.parametrize("name", ["ets", "arima"])
def test_scaling_all_prices_scales_the_forecast(name):
    series = walk(5 * DAY, seed=4)
    small = make(name).fit(Series("p", 1.7e9, 300.0, price=series)).predict(DAY)
    large = make(name).fit(Series("p", 1.7e9, 300.0, price=series * 1000)).predict(DAY)
    assert large.mean == pytest.approx(small.mean * 1000, rel=1e-3)
    assert large.quantiles == pytest.approx(small.quantiles * 1000, rel=5e-2)


def daily(num_days, seed=0):
    """A price with a clear day, hourly."""
    hours = np.arange(24 * num_days)
    return 10 + 3 * np.sin(2 * np.pi * hours / 24) + 0.3 * noise(len(hours), seed)


@pytest.mark.parametrize("name", ["seasonal_naive", "ets", "arima", "auto"])
def test_a_clear_daily_cycle_is_forecast_far_better_than_by_persistence(name):
    values = daily(16)
    truth = values[-24:]
    forecast = make(name).fit(list(values[:-24])).predict(24)
    assert np.abs(forecast.mean - truth).mean() < 0.4 * np.abs(values[-25] - truth).mean()


def test_a_season_keeps_its_phase_through_updates():
    values = daily(16)
    for name in ("ets", "arima"):
        forecaster = make(name).fit(list(values[: 24 * 10]))
        for hour in range(24 * 10, 24 * 15 + 7):
            forecaster.update(values[hour])
        truth = values[24 * 15 + 7 :]
        assert np.abs(forecaster.predict(len(truth)).mean - truth).mean() < 1.0, name


def test_the_levels_asked_for_are_the_lines_given():
    forecast = make("persistence").fit(list(walk(100))).predict(4, (0.05, 0.5, 0.95))
    assert forecast.levels == (0.05, 0.5, 0.95)
    assert (forecast.level(0.95) >= forecast.level(0.05)).all()
    assert len(LEVELS) == 5
    with pytest.raises(KeyError):
        forecast.band(0.8)
