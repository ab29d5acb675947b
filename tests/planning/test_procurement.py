"""From a wish to proposals: hysteresis, names, quota, budget, and what a person is told about on-demand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forecasting.outlook import Band
from jobs.scheduler.on_demand import on_demand_proposal, waiting_usd_per_hour
from jobs.scheduler.planner import PlanFacts, SpotQuote, Wish
from jobs.scheduler.procurement import (
    Settings,
    Standing,
    limited,
    machines_proposal,
    needs_asking,
    with_less_spot,
    without_new_on_demand,
)
from jobs.scheduler.speed import Speed, pace_spread, speed_of

SETTINGS = Settings(min_run_s=300.0, max_changes=3, window_s=3600.0, until_next_s=600.0)
BAND = Band(20.0, 15.0, 25.0)


def facts(**fields: Any) -> PlanFacts:
    given: dict[str, Any] = {
        "policy": "prefer", "steps_left": 900, "time_left_s": 36_000.0, "n_min": 1, "n_max": 4,
        "speed": Speed(40.0, 0.1), "spread": 0.1, "changeover_s": 60.0,
        "spot": SpotQuote("offer-a", "a", 1.0, 4), "on_demand_usd_per_hour": 3.0,
    }  # fmt: skip
    return PlanFacts(**{**given, **fields})


def wish(spot: int, on_demand: int = 0, rule: str = "programme") -> Wish:
    return Wish(spot, on_demand, rule, "because.", BAND, Band(9000.0, 8000.0, 10_000.0), 0.97, 5000.0)


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ((0, 0), (2, 0), "procure"),
        ((2, 0), (4, 0), "procure"),
        ((4, 0), (2, 0), "release"),
        ((2, 0), (0, 0), "idle"),
        ((0, 2), (2, 0), "procure"),
    ],
)
def test_a_change_has_the_name_of_what_it_does(before: tuple[int, int], after: tuple[int, int], kind: str) -> None:
    proposal = machines_proposal(facts(), wish(*after), Standing(*before), SETTINGS)
    assert proposal is not None
    assert (proposal.kind, proposal.args["spot"], proposal.args["on_demand"]) == (kind, *after)


def test_another_offer_is_a_migration_and_the_same_numbers_in_the_same_offer_are_nothing() -> None:
    here, there = Standing(2, 0, "offer-a"), Standing(2, 0, "offer-b")
    assert machines_proposal(facts(), wish(2), here, SETTINGS) is None
    moved = machines_proposal(facts(), wish(2), there, SETTINGS)
    assert moved is not None
    assert (moved.kind, moved.args["offer"]) == ("migrate", "offer-a")


def test_small_to_and_fro_waits_and_what_is_urgent_does_not() -> None:
    just_now = Standing(2, 0, since_change_s=10.0)
    often = Standing(2, 0, num_changes=3)
    for standing in (just_now, often):
        assert machines_proposal(facts(), wish(3), standing, SETTINGS) is None
        assert machines_proposal(facts(), wish(0, 4, "guard"), standing, SETTINGS) is not None
        assert machines_proposal(facts(), wish(3), replace(standing, is_urgent=True), SETTINGS) is not None
    assert machines_proposal(facts(), wish(3), Standing(0, 0, since_change_s=10.0), SETTINGS) is not None
    assert machines_proposal(facts(), wish(0, 1, "guard"), Standing(0, 2, since_change_s=10.0), SETTINGS) is None
    assert machines_proposal(facts(), wish(0, 1, "budget"), Standing(0, 2, since_change_s=10.0), SETTINGS) is not None


def test_machines_that_end_the_job_in_time_within_two_changeovers_are_left_alone() -> None:
    standing = Standing(0, 2)
    step_s = Speed(40.0, 0.1).step_time_s(2)
    almost, more = int(110.0 / step_s), int(130.0 / step_s) + 1  # a changeover takes 60 s
    there = facts(steps_left=almost, held_on_demand=2)
    assert machines_proposal(there, wish(1), standing, SETTINGS) is None
    assert machines_proposal(there, wish(1), replace(standing, is_urgent=True), SETTINGS) is None
    assert machines_proposal(there, wish(4, 0, "guard"), standing, SETTINGS) is None
    assert machines_proposal(replace(there, steps_left=more), wish(1), standing, SETTINGS) is not None
    assert machines_proposal(replace(there, time_left_s=20.0), wish(4), standing, SETTINGS) is not None
    assert machines_proposal(replace(there, changeover_left_s=30.0), wish(1), standing, SETTINGS) is not None
    assert machines_proposal(replace(there, held_on_demand=0), wish(1), standing, SETTINGS) is not None, "only ordered"


def test_on_demand_does_not_wait_where_the_next_look_would_be_too_late() -> None:
    late, standing = replace(wish(0, 2), last_safe_s=500.0), Standing(2, 0, since_change_s=10.0)
    assert machines_proposal(facts(held_spot=2), late, standing, SETTINGS) is not None
    assert machines_proposal(facts(held_spot=2), replace(late, last_safe_s=700.0), standing, SETTINGS) is None
    assert machines_proposal(facts(held_spot=2), replace(wish(1), last_safe_s=500.0), standing, SETTINGS) is None


def test_a_cap_pays_for_the_machines_until_they_have_been_of_use_and_is_not_asked_for_twice_at_the_end() -> None:
    nearly = replace(wish(0, 2), finish=Band(60.0, 40.0, 80.0))
    cap = on_demand_proposal(facts(), nearly, wish(0), Standing(), SETTINGS).args["max_usd"]
    assert cap == pytest.approx(1.3 * 2 * 3.0 * 2 * SETTINGS.until_next_s / 3600)
    covered = Standing(0, 2, covered=2, covered_usd_left=0.5)
    assert not needs_asking(facts(), nearly, covered, SETTINGS)
    assert needs_asking(facts(), wish(0, 2), covered, SETTINGS)


def test_on_demand_that_would_soon_be_needed_again_is_kept() -> None:
    standing, spot = Standing(0, 2, covered=2), wish(2)
    enough = facts().changeover_s + SETTINGS.until_next_s
    assert machines_proposal(facts(), replace(spot, last_safe_s=enough - 10.0), standing, SETTINGS) is None
    assert machines_proposal(facts(), replace(spot, last_safe_s=enough + 10.0), standing, SETTINGS) is not None
    assert machines_proposal(facts(), replace(spot, last_safe_s=110.0), Standing(1, 0), SETTINGS) is not None
    assert machines_proposal(facts(), replace(spot, last_safe_s=110.0), Standing(0, 2), SETTINGS) is not None, (
        "not covered"
    )


def test_the_budget_stops_before_it_is_passed_and_keeps_the_price_of_saving() -> None:
    """Four on-demand cost $2 until the next look; saving what is held costs another $0.20."""
    held = facts(held_on_demand=4, budget_usd=10.0)
    assert limited(replace(held, spent_usd=7.7), wish(0, 4), machines_left=99, settings=SETTINGS)[0].on_demand == 4
    smaller, why = limited(replace(held, spent_usd=7.9), wish(0, 4), machines_left=99, settings=SETTINGS)
    assert smaller.on_demand == 3
    assert why == "budget: $7.90 of $10.00 spent"
    assert limited(replace(held, spent_usd=9.9), wish(0, 4), machines_left=99, settings=SETTINGS)[0].size == 0


def test_a_quota_takes_on_demand_first_and_leaves_no_less_than_the_job_can_use() -> None:
    assert limited(facts(), wish(2, 2), machines_left=3, settings=SETTINGS)[0].spot == 2
    assert limited(facts(), wish(2, 2), machines_left=3, settings=SETTINGS)[0].on_demand == 1
    tight, why = limited(facts(n_min=2), wish(2, 0), machines_left=1, settings=SETTINGS)
    assert (tight.size, why) == (0, "team quota")


def test_on_demand_is_asked_for_unless_an_approval_covers_it_and_is_not_nearly_used() -> None:
    assert needs_asking(facts(), wish(0, 2), Standing(), SETTINGS)
    assert not needs_asking(facts(), wish(2, 0), Standing(), SETTINGS)
    covered = Standing(covered=2, covered_usd_left=50.0)
    assert not needs_asking(facts(), wish(0, 2), covered, SETTINGS)
    assert needs_asking(facts(), wish(0, 3), covered, SETTINGS)
    assert needs_asking(facts(), wish(0, 2), replace(covered, covered_usd_left=1.0), SETTINGS)


def test_until_there_is_an_answer_the_job_has_spot_and_what_is_covered() -> None:
    fallback = without_new_on_demand(facts(spot=SpotQuote("a", "a", 1.0, 1)), wish(0, 4, "guard"), covered=2)
    assert (fallback.spot, fallback.on_demand) == (1, 2)
    nothing = without_new_on_demand(facts(n_min=2, spot=SpotQuote("a", "a", 1.0, 1)), wish(0, 4), covered=0)
    assert nothing.size == 0


def test_spot_that_others_took_is_replaced_only_where_it_cannot_wait() -> None:
    scarce = facts(spot=SpotQuote("a", "a", 1.0, 1))
    assert with_less_spot(scarce, wish(4)).size == 1
    urgent = with_less_spot(scarce, wish(4, 0, "guard"))
    assert (urgent.spot, urgent.on_demand) == (1, 3)


def test_the_ask_has_a_cap_within_the_budget_ranges_and_an_end_of_use() -> None:
    proposal = on_demand_proposal(facts(), wish(0, 4, "guard"), wish(0), Standing(), SETTINGS)
    assert proposal.kind == "switch_to_on_demand"
    assert proposal.usd_per_hour == 12.0
    assert proposal.price_usd == proposal.args["max_usd"] == pytest.approx(1.3 * 12 * 10_000 / 3600, abs=0.01)
    assert proposal.expires_after_s == 5000.0
    assert proposal.allowed["on_demand"] == {"min": 1, "max": 4, "integer": True}
    poor = on_demand_proposal(facts(budget_usd=20.0, spent_usd=5.0), wish(0, 4), wish(0), Standing(), SETTINGS)
    assert poor.price_usd == 15.0


def test_waiting_costs_nothing_with_time_in_hand_and_a_full_hour_when_the_deadline_is_at_stake() -> None:
    cheap = waiting_usd_per_hour(facts(time_left_s=200_000.0))
    tight = waiting_usd_per_hour(facts(time_left_s=16_000.0))
    lost = waiting_usd_per_hour(facts(time_left_s=13_000.0))
    assert cheap == 0.0
    assert 0 < tight < lost == 12.0


def test_speed_keeps_the_pace_that_runs_and_learns_what_more_workers_do_not_shorten() -> None:
    slow = speed_of(measured_s={1: 10.0, 2: 7.5}, now=(4, 6.25))
    assert slow is not None
    assert slow.serial_share == 0.5
    assert slow.step_time_s(4) == pytest.approx(6.25)
    one = speed_of(measured_s={}, now=(2, 5.5))
    assert one is not None
    assert one.step_time_s(2) == pytest.approx(5.5)
    assert speed_of(measured_s={}) is None
    curve = slow.curve(4)
    assert curve[0] == 0.0
    assert list(curve) == sorted(curve)
    assert pace_spread([1.0, 1.0]) < pace_spread([1.0, 1.5]) <= 0.4


def test_a_command_that_a_change_throws_back_is_moved_only_for_what_cannot_wait() -> None:
    plain = Standing(2, 0, "offer-b", restarts=True)
    assert machines_proposal(facts(), wish(2), plain, SETTINGS) is None  # a cheaper offer
    assert machines_proposal(facts(), wish(4), plain, SETTINGS) is None  # more spot
    assert (
        machines_proposal(facts(), wish(2), replace(plain, is_urgent=True), SETTINGS) is not None
    )  # a machine was taken
    assert machines_proposal(facts(), wish(0, 4, "guard"), replace(plain, covered=4), SETTINGS) is not None
    assert machines_proposal(facts(), wish(0, 0, "budget"), plain, SETTINGS) is not None
    assert machines_proposal(facts(), wish(4), replace(plain, restarts=False), SETTINGS) is not None
