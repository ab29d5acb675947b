"""PatchTST: learns a cycle, is deterministic, stops at its budget, and keeps torch out of everything else."""

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from forecasting.forecasters import make

pytest.importorskip("torch")


def daily(num_days):
    hours = np.arange(24 * num_days)
    return 10 + 3 * np.sin(2 * np.pi * hours / 24) + np.random.default_rng(0).normal(0, 0.3, len(hours))


@pytest.fixture(scope="module")
def fitted():
    return make("patchtst", max_epochs=15, time_budget_s=90).fit(list(daily(14)[:-48]))


def test_two_days_ahead_a_daily_cycle_is_forecast_better_than_by_persistence(fitted):
    truth = daily(14)[-48:]
    forecast = fitted.predict(48)
    assert forecast.fallback is None
    assert np.abs(forecast.mean - truth).mean() < 0.5 * np.abs(daily(14)[-49] - truth).mean()


def test_the_forecast_goes_on_beyond_the_trained_length_and_stays_usable(fitted):
    forecast = fitted.predict(24 * 5)
    assert np.isfinite(forecast.mean).all()
    assert np.isfinite(forecast.quantiles).all()
    assert (np.diff(forecast.quantiles, axis=0) >= 0).all()


def test_an_update_needs_no_training(fitted):
    began = time.process_time()
    fitted.update(10.0)
    assert time.process_time() - began < 0.02
    assert fitted.predict(3).fallback is None


def test_the_same_seed_gives_the_same_forecast():
    values = list(daily(10))
    first, second = (make("patchtst", max_epochs=1, seed=5).fit(values).predict(24).mean for _ in range(2))
    assert np.array_equal(first, second)


def test_a_budget_of_nothing_ends_in_persistence_with_a_warning():
    forecast = make("patchtst", time_budget_s=0.0).fit(list(daily(10))).predict(24)
    assert forecast.mean == pytest.approx(np.full(24, daily(10)[-1]))
    assert any("stopped at its budget" in warning for warning in forecast.warnings)


def test_too_few_points_are_a_declared_fallback():
    assert "needs 96" in make("patchtst").fit([1.0, 2.0] * 20).predict(5).fallback


def test_the_library_loads_neither_torch_nor_django_until_the_transformer_is_fitted():
    program = (
        "import sys, forecasting.forecasters as f; import forecasting.generator, forecasting.feeds.detect\n"
        "for name in f.REGISTRY: f.make(name).fit([1.0, 2.0, 3.0] * 30).predict(3)\n"
        "assert not {'torch', 'transformers', 'django', 'celery'} & set(sys.modules)"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
