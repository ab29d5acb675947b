"""What the planner takes from the stored forecasts of an offer, when it does not, and that it says so."""

from __future__ import annotations

import datetime as dt
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from django.core.management import call_command

from jobs.epoch import plans_tick
from jobs.models import Decision, Job, MarketForecast, MarketPast, Offer, PlanState
from jobs.previews import job_preview
from jobs.scheduler.forecasts import FRESH_S, StoredForecast, count_ahead, on_slots, price_ahead
from tests.factories import NOW, make_team
from tests.planning.world import SPOT_USD, make_market, planned_job, quote

NOW_S = 1_000_000.0
HOUR = StoredForecast("ets", tuple(float(i) for i in range(12)), NOW_S, 300.0, NOW_S, 1.0)


def forecast(offer: Offer, target: str, mean: list[float], *, model: str, minutes: float = 4.0) -> MarketForecast:
    """A forecast as the clock stores it, made so many minutes ago."""
    at = NOW - dt.timedelta(minutes=minutes)
    return MarketForecast.objects.create(
        offer=offer, target=target, model=model, start_at=at, gap_s=300, mean=mean, quantiles={}, computed_at=at
    )


def again(decision: Decision) -> bool:
    out = io.StringIO()
    call_command("replay_decision", str(decision.uuid), "--json", stdout=out)
    return bool(json.loads(out.getvalue())["same"])


def cost(job: Job) -> float:
    return float(PlanState.objects.get(job=job).plan["cost_usd"]["expected"])


@pytest.mark.parametrize(
    ("later_s", "slot_s", "expected"),
    [
        (0.0, 300.0, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        (0.0, 600.0, [2.5, 4.5, 6.5, 8.5, 10.5]),
        (150.0, 300.0, [1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 8.5, 9.5, 10.5]),
        (900.0, 1200.0, [8.5]),
    ],
)
def test_a_forecast_is_shifted_by_its_age_and_averaged_over_the_slots_after_the_present_one(
    later_s: float, slot_s: float, expected: list[float]
) -> None:
    assert on_slots(HOUR, now_s=NOW_S + later_s, slot_s=slot_s) == pytest.approx(expected)


def test_what_is_taken_of_a_price_forecast_is_the_change_from_the_price_it_was_made_at() -> None:
    flat = replace(HOUR, mean=(2.0,) * 12, seen=2.0)
    line, use = price_ahead(flat, price=0.5, now_s=NOW_S, slot_s=300.0)
    assert line is not None
    assert line == pytest.approx(np.full(11, 0.5)), "persistence is the price in force, whatever it was before"
    assert use.words == "Price ahead: forecast by ets, 0 min old"


@pytest.mark.parametrize(
    ("stored", "later_s", "slot_s", "why"),
    [
        (None, 0.0, 300.0, "no forecast is stored"),
        (replace(HOUR, mean=(1.0,) * 144), FRESH_S + 60, 300.0, "the forecast is 31 min old"),
        (HOUR, 0.0, 20.0, "the forecast has ticks of 300 s, the plan slots of 20 s"),
        (HOUR, 0.0, 2400.0, "the forecast ends before the next slot does"),
    ],
)
def test_a_forecast_that_cannot_be_used_is_not_and_the_reason_is_told(
    stored: StoredForecast | None, later_s: float, slot_s: float, why: str
) -> None:
    for line, use in (
        price_ahead(stored, price=1.0, now_s=NOW_S + later_s, slot_s=slot_s),
        count_ahead(stored, count=1, now_s=NOW_S + later_s, slot_s=slot_s),
    ):
        assert line is None
        assert use.why == why
        assert use.words.endswith(f", as {why}")


def test_a_count_that_has_changed_makes_its_forecast_useless() -> None:
    line, use = count_ahead(HOUR, count=4, now_s=NOW_S, slot_s=300.0)
    assert line is None
    assert use.why == "what is to be had has changed since the forecast"


@pytest.mark.django_db
def test_the_programme_counts_with_the_price_that_is_forecast_and_the_decision_can_be_made_again() -> None:
    """Spot is always there; its price is said to rise by one half at once."""
    offer = make_market(spot=8, past=[8] * 200)
    team = make_team()
    jobs = [planned_job(team, hours=hours) for hours in (8.0, 10.0)]
    before = job_preview(job=jobs[0], now=NOW)
    assert "Price ahead: as it is now, as no forecast is stored." in before.reasons
    forecast(offer, "price", [1.5 * SPOT_USD] * 144, model="ets")
    made = plans_tick(now=NOW)
    assert before.cost_usd is not None
    assert 1.05 < cost(jobs[0]) / before.cost_usd < 1.5, "the present slot and on-demand cost what they did"
    assert len(made) == 2
    told = {"target": "price", "model": "ets", "age_s": 240.0, "why": ""}
    for decision in made:
        assert decision.evidence["forecasts"] == [told]
        assert again(decision)
    assert "Price ahead: forecast by ets, 4 min old." in job_preview(job=jobs[0], now=NOW).reasons
    assert set(MarketPast.objects.get().ahead) == {"price"}


@pytest.mark.django_db
def test_ahap_plans_with_the_availability_that_is_forecast_until_it_has_changed() -> None:
    offer = make_market(spot=2, past=[4] * 190 + [2] * 10)
    forecast(offer, "availability", [0.0] * 144, model="hazard")

    def planned(now: dt.datetime) -> Decision:
        job = planned_job(hours=8.0, resources={"policy": "AHAP(6,2,0.8)"})
        return next(d for d in plans_tick(now=now) if d.job_id == job.pk)

    dark = planned(NOW)
    assert [use["target"] for use in dark.evidence["forecasts"]] == ["price", "availability"]
    assert dark.evidence["forecasts"][1]["model"] == "hazard"
    assert again(dark)
    quote(offer, at=NOW + dt.timedelta(seconds=60), spot=3)
    moved = planned(NOW + dt.timedelta(seconds=90))
    assert moved.evidence["forecasts"][1]["why"] == "what is to be had has changed since the forecast"
    assert again(moved)
