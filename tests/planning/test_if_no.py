"""What a person is told of a no to on-demand, of every kind of job that asks: never a spot that it does not take."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.epoch import plans_tick
from jobs.models import Decision, Job, Offer
from jobs.planner_replays import proposals_again
from jobs.scheduler.no_answer import if_no_of, told
from jobs.scheduler.planner import PlanFacts, SpotQuote, Wish
from jobs.scheduler.procurement import Standing
from jobs.scheduler.speed import Speed
from tests.factories import NOW, Cast, make_cast
from tests.planning.world import make_market, planned_job
from webapp.pages.machine_decisions import follows_no

pytestmark = pytest.mark.django_db
KIND = "switch_to_on_demand"


def ask(now: dt.datetime = NOW, *, offered: bool = True, **fields: Any) -> tuple[Cast, Job, Decision]:
    """A job that asks for on-demand. `offered`: whether there is a spot offer at all."""
    cast = make_cast()
    make_market(spot=0, now=now)
    if not offered:
        Offer.objects.filter(is_spot=True).delete()
    hours = fields.pop("hours", 5.2)
    job = planned_job(cast.team, hours=hours, **fields)
    if hours is not None:
        Job.objects.filter(pk=job.pk).update(deadline=now + dt.timedelta(hours=hours))
    plans_tick(now=now)
    job.refresh_from_db()
    return cast, job, Decision.objects.get(kind=KIND)


def test_a_job_that_never_takes_spot_waits_without_machines_and_its_chance_is_none() -> None:
    _, job, decision = ask(policy="never")
    assert decision.evidence["if_no"] == {
        "how": "waits", "spot": 0, "on_demand": 0, "chance": 0.0, "waits_for": "approval",
    }  # fmt: skip
    assert decision.evidence["if_yes"]["chance"] > 0.5
    assert "spot" not in decision.sentence
    assert "to the end" in decision.sentence
    assert "its file asks for on-demand alone" in decision.sentence
    assert follows_no(decision) == (
        f"{job.name} waits without machines until on-demand is approved, and is not asked again for a while. 0 % chance to make "
        "the deadline as long as nothing is bought."
    )


def test_without_a_spot_offer_it_waits_for_one() -> None:
    _, job, decision = ask(offered=False)
    assert decision.evidence["if_no"]["chance"] == 0.0
    assert "until there is spot and" in decision.sentence
    assert follows_no(decision).startswith(f"{job.name} waits without machines until there is a spot offer, and")


def test_without_a_deadline_nothing_is_said_of_one() -> None:
    _, job, decision = ask(offered=False, hours=None)
    assert decision.evidence["if_no"]["chance"] is None
    assert follows_no(decision).endswith("It has no deadline; what it costs and when it is done is open.")
    assert decision.job == job


def test_without_a_pace_the_chance_of_waiting_for_spot_is_not_made_up() -> None:
    _, _, decision = ask(step_time_s=None)
    assert (decision.evidence["if_no"]["how"], decision.evidence["if_no"]["chance"]) == ("waits", None)
    assert follows_no(decision).endswith("How likely it then makes the deadline cannot be said.")


def test_along_the_paths_of_the_market_the_method_is_named() -> None:
    _, job, decision = ask()
    assert decision.evidence["if_no"]["how"] == "paths"
    words = follows_no(decision)
    assert words.startswith(f"{job.name} goes on with the spot there is, and is not asked again for a while. Done in ")
    assert words.endswith(
        "chance to make the deadline. Found along drawn paths of the spot market, without new on-demand."
    )


@pytest.mark.parametrize("fields", [{"policy": "never"}, {"offered": False}, {}, {"step_time_s": None}])
def test_a_decision_made_again_has_the_same_outcome_of_a_no(fields: dict[str, Any]) -> None:
    *_, decision = ask(**fields)
    again = next(proposal for proposal in proposals_again(decision) if proposal.kind == KIND)
    assert (again.evidence, again.sentence) == (decision.evidence, decision.sentence)


def facts(**fields: Any) -> PlanFacts:
    given: dict[str, Any] = {
        "policy": "never", "steps_left": 900, "time_left_s": 36_000.0, "n_min": 1, "n_max": 4, "speed": Speed(40.0, 0.1),
        "spread": 0.1, "changeover_s": 60.0, "on_demand_usd_per_hour": 3.0, "held_on_demand": 2,
    }  # fmt: skip
    return PlanFacts(**{**given, **fields})


def test_on_demand_that_is_paid_to_the_end_goes_on_and_that_which_is_not_ends_with_its_cap() -> None:
    keeps = Wish(0, 2, "steady", "")
    needed_h = 900 * Speed(40.0, 0.1).step_time_s(2) / 3600
    enough = told(if_no_of(facts(), keeps, Standing(0, 2, covered=2, covered_usd_left=6 * needed_h + 1), None))
    assert (enough["how"], enough["chance"] > 0.9) == ("steady", True)
    assert enough["cost_usd"]["expected"] == pytest.approx(6 * needed_h, rel=0.01)
    short = told(if_no_of(facts(), keeps, Standing(0, 2, covered=2, covered_usd_left=6.0), None))
    assert (short["how"], short["lasts_s"], short["chance"], short["waits_for"]) == ("cover", 3600.0, 0.0, "approval")


def test_after_the_deadline_no_chance_is_left_whatever_comes() -> None:
    late = facts(policy="prefer", time_left_s=-60.0, spot=SpotQuote("offer", "a", 1.0, 0), held_on_demand=0)
    assert if_no_of(late, Wish(0, 0, "wait", ""), Standing(), None).chance == 0.0


def test_the_inbox_shows_what_a_no_leads_to() -> None:
    cast, job, decision = ask(timezone.now() - dt.timedelta(seconds=5), policy="never", hours=5.5)
    client = Client()
    client.force_login(cast.approver)
    page = client.get(reverse("decisions")).content.decode()
    assert decision.sentence in page
    assert ", 0 % with a no" in page
    assert f"{job.name} waits without machines until on-demand is approved, and is not asked again for a while." in page
