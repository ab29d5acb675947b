"""What the jobs of an epoch share, and that sharing changes no answer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forecasting.policies.forecasts import markov_forecast
from forecasting.problem import FloatArray, IntArray
from forecasting.problem import Offer as Market
from jobs.scheduler import wishes as module
from jobs.scheduler.planner import Followed, Markets, PlanFacts, SpotQuote
from jobs.scheduler.speed import speed_of
from jobs.scheduler.wishes import wishes

CLOCK_S = 1_790_000_000.0


def market() -> Markets:
    """One offer whose four machines come and go, on slots of 300 s."""
    up = np.cumsum(np.random.default_rng(3).random(400) < 0.05) % 2 == 0
    return Markets(300.0, {("offer", 300.0): Market(4 * up.astype(np.int64), np.full(400, 1 / 12), "offer")})


def jobs_like(policy: str) -> list[PlanFacts]:
    one = PlanFacts(
        "prefer", 900, 8 * 3600.0, 1, 4, speed_of(measured_s={4: 20.0}), 0.1, 120.0, held_spot=2,
        spot=SpotQuote("offer", "a/sim-1x", 1.0, 4), on_demand_usd_per_hour=3.0, followed=Followed(policy),
    )  # fmt: skip
    return [replace(one, steps_left=900 - 40 * i, time_left_s=(8 - i / 2) * 3600.0) for i in range(6)]


@pytest.mark.parametrize("policy", ["AHAP(6,2,0.8)", "AHAP(6,2,0.8)~0.3"])
def test_jobs_that_follow_a_forecasting_policy_share_its_forecasts(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(availability: IntArray, price: FloatArray, horizon: int) -> tuple[FloatArray, FloatArray]:
        asked.append(horizon)
        return markov_forecast(availability, price, horizon)

    monkeypatch.setattr(module, "markov_forecast", counted)
    jobs, markets = jobs_like(policy), market()
    alone = [wishes([facts], markets, CLOCK_S)[0] for facts in jobs]
    by_themselves = len(asked)
    asked.clear()
    together = wishes(jobs, markets, CLOCK_S)
    assert 0 < len(asked) == by_themselves / len(jobs), "as many as one of them needs"
    for one, other in zip(together, alone, strict=True):
        assert [(w.spot, w.on_demand, w.rule) for w in one] == [(w.spot, w.on_demand, w.rule) for w in other]
