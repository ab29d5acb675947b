"""Offers that providers refuse: the next one is asked, for a while, and what is said of it is true."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from jobs.epoch import plans_tick
from jobs.models import Command, Decision, Instance, Job, Offer, PlanState, Quote, Rule, Team
from jobs.selectors.offers import offer_to_ask
from jobs.selectors.refusals import offer_refusals
from jobs.services.plans import plan_ask
from tests.factories import NOW, make_team
from tests.planning.world import SLOT_S, hold, make_market, on_demand_offer, planned_job

pytestmark = pytest.mark.django_db


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def state(job: Job) -> PlanState:
    return PlanState.objects.get(job=job)


def looked_at(job: Job, at: dt.datetime) -> list[Decision]:
    """A plan of the job at a moment at which something has happened."""
    plan_ask(job=job, now=at, why="A machine was refused.")
    return plans_tick(now=at)


def zones(*prices: float) -> list[Offer]:
    """Spot zones of whose machines nobody says how many there are, as on EC2."""
    offers = [make_market(spot=4, zone="abc"[i], price=price, past=[4] * 100) for i, price in enumerate(prices)]
    Quote.objects.filter(offer__is_spot=True).update(availability=None)
    return offers


def wish(job: Job, offer: Offer, num: int, *, at: dt.datetime = NOW) -> None:
    """Machines that are asked for, as the order under way does."""
    for i in range(num):
        Instance.objects.create(
            team=job.team, job=job, offer=offer, claim=f"w{Instance.objects.count()}-{i}", backend="simulated",
            kind="spot" if offer.is_spot else "on_demand", num_gpus=1, price_usd_per_hour=1, status="requested",
            created_at=at, status_at=at,
        )  # fmt: skip


def refuse(offer: Offer, *, num: int, at: dt.datetime, since: dt.datetime = NOW) -> None:
    """What the watch notes with each standing wish for a machine of the offer."""
    asked: dict[str, Any] = {"num": num, "since": since.timestamp(), "at": at.timestamp(), "answer": "none to be had"}
    asked["again_at"] = (at + dt.timedelta(seconds=min(30, 2 ** (num - 1)))).timestamp()
    Instance.objects.filter(offer=offer, status="requested").update(asked=asked)


def test_a_zone_that_is_refused_is_left_for_the_next_one_and_the_reason_says_so() -> None:
    a, b = zones(1.0, 1.1)
    job = planned_job()
    (first,) = plans_tick(now=NOW)
    assert first.args["offer"] == str(a.uuid)
    wish(job, a, first.args["spot"])
    refuse(a, num=3, at=later(5))
    (move,) = looked_at(job, later(6))
    assert (move.kind, move.args["offer"]) == ("migrate", str(b.uuid))
    assert "(a/sim-1x refused 3 times since 12:40 UTC, asked again at " in move.sentence
    assert state(job).plan["spot"]["name"] == "b/sim-1x"


def test_a_zone_counts_as_empty_for_longer_with_each_refusal_in_a_row_and_never_for_more_than_two_slots() -> None:
    (a,) = zones(1.0)
    job = planned_job()
    wish(job, a, 1)
    pauses = []
    for num in (1, 3, 12, 50):
        refuse(a, num=num, at=later(100))
        pauses.append((offer_refusals(now=later(100))[a.pk].empty_until - later(100)).total_seconds())
    assert pauses == [0.2 * SLOT_S, 0.6 * SLOT_S, 2 * SLOT_S, 2 * SLOT_S]


def test_refusals_are_remembered_after_the_wish_was_taken_back_and_forgotten_after_a_machine() -> None:
    a, b = zones(1.0, 1.1)
    job = planned_job()
    wish(job, a, 2)
    refuse(a, num=4, at=NOW)
    Instance.objects.update(status="terminated", status_at=later(1), started_at=later(1), ended_at=later(1))
    assert set(offer_refusals(now=later(2))) == {a.pk}
    assert offer_to_ask(job=job, is_spot=True, now=later(2)) == b
    hold(planned_job(), a, 1, since=later(9))
    assert offer_refusals(now=later(10)) == {}
    assert offer_to_ask(job=job, is_spot=True, now=later(10)) == a


def test_where_all_are_refused_the_cheapest_is_waited_for_and_it_is_said_how_often_it_said_no() -> None:
    a, b = zones(1.0, 1.1)
    job = planned_job(policy="only")
    for offer in (a, b):
        wish(job, offer, 4)
        refuse(offer, num=12, at=later(290))
    looked_at(job, later(300))
    assert state(job).waits_on == "spot"
    words = (
        "waits for spot in a/sim-1x: 0 of 1 (a/sim-1x refused 12 times since 12:40 UTC, asked again at 12:45:20 UTC)"
    )
    assert state(job).waits_for == words
    Instance.objects.update(status="terminated", status_at=later(301))
    looked_at(job, later(302))
    assert state(job).waits_for.endswith("asked again from 12:54:50 UTC)")
    made = looked_at(job, later(290 + 601))
    assert [d.kind for d in made] == ["procure"], "after the pause it is asked again"


def test_on_demand_that_is_refused_goes_to_the_next_offer_and_costs_what_that_costs() -> None:
    make_market(spot=0)
    job = planned_job(hours=5.2)
    dear = Offer.objects.create(provider="simulated", region="sim", instance_type="sim-2x", is_spot=False, num_gpus=1)
    Quote.objects.create(offer=dear, at=NOW, price_usd_per_hour="3.5")
    wish(job, on_demand_offer_of("sim-1x"), 4)
    refuse(on_demand_offer_of("sim-1x"), num=2, at=later(1))
    assert offer_to_ask(job=job, is_spot=False, now=later(2)) == dear
    plans_tick(now=later(2))
    assert state(job).plan["on_demand_usd_per_hour"] == 3.5


def on_demand_offer_of(kind: str) -> Offer:
    return Offer.objects.get(is_spot=False, instance_type=kind)


def test_on_demand_that_the_provider_refuses_is_no_machine_that_is_being_started() -> None:
    make_market(spot=0)
    team = make_team()
    Rule.objects.create(team=team, kind="switch_to_on_demand", autonomy="auto")
    job = planned_job(team, hours=5.2)
    plans_tick(now=NOW)
    assert state(job).waits_for == "machines are being started: 0 of 4"
    wish(job, on_demand_offer(), 4)
    refuse(on_demand_offer(), num=50, at=later(3600))
    looked_at(job, later(3601))
    words = "has 0 of 4 machines: sim/sim-1x on-demand refused 50 times since 12:40 UTC, asked again at 13:40:30 UTC"
    assert (state(job).waits_on, state(job).waits_for) == ("machines", words)


def two_regions() -> Offer:
    """Spot in eu; on-demand there for 3 USD an hour, and in us for 2."""
    for region, price in (("eu", "3.0"), ("us", "2.0")):
        sure = Offer.objects.create(
            provider="simulated", region=region, instance_type="sim-1x", is_spot=False, num_gpus=1
        )
        Quote.objects.create(offer=sure, at=NOW, price_usd_per_hour=price)
    spot = Offer.objects.create(
        provider="simulated", region="eu", zone="eu-a", instance_type="sim-1x", is_spot=True, num_gpus=1
    )
    Quote.objects.create(offer=spot, at=NOW, price_usd_per_hour="1.0", availability=4)
    return spot


def test_on_demand_is_priced_and_asked_for_in_the_region_of_the_spot_machines_in_use() -> None:
    spot = two_regions()
    job = planned_job()
    hold(job, spot, 2)
    chosen = offer_to_ask(job=job, is_spot=False)
    assert chosen is not None
    assert chosen.region == "eu"
    plans_tick(now=NOW)
    assert state(job).plan["on_demand_usd_per_hour"] == 3.0


def test_without_machines_on_demand_is_priced_where_the_spot_for_the_job_is_and_anywhere_if_there_is_none() -> None:
    spot = two_regions()
    job = planned_job()
    plans_tick(now=NOW)
    assert state(job).plan["on_demand_usd_per_hour"] == 3.0
    Quote.objects.create(offer=spot, at=later(1), price_usd_per_hour="1.0", availability=0)
    looked_at(job, later(2))
    assert state(job).plan["on_demand_usd_per_hour"] == 2.0


def test_machines_with_several_gpus_are_not_bought_for_one_worker_each_and_the_job_says_so() -> None:
    make_market(spot=4)
    Offer.objects.update(num_gpus=4)
    team = make_team()
    Team.objects.filter(pk=team.pk).update(max_gpus=4)
    job = planned_job(team)
    assert plans_tick(now=NOW) == []
    assert not Command.objects.filter(job=job, kind="procure").exists()
    assert state(job).waits_for == (
        "waits for an offer with one GPU (a/sim-1x has 4, and a machine carries one worker)"
    )
