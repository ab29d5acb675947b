"""The queue of jobs that wait for machines: who is in it, and why."""

from __future__ import annotations

import datetime as dt
from importlib import import_module

import pytest
from django.apps import apps

from jobs.epoch import plans_tick
from jobs.models import Job, Offer, PlanState, Team
from jobs.selectors.jobs import queue_places
from tests.factories import NOW, Cast, make_cast
from tests.planning.world import make_market, planned_job

pytestmark = pytest.mark.django_db


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def state(job: Job) -> PlanState:
    return PlanState.objects.get(job=job)


@pytest.fixture
def cast() -> Cast:
    """A team of four GPUs on a wide market."""
    make_market(spot=40, past=[40] * 100)
    cast = make_cast()
    Team.objects.filter(pk=cast.team.pk).update(max_gpus=4)
    return cast


def test_the_queue_is_of_those_that_lack_something_by_its_code_and_not_by_its_words(cast: Cast) -> None:
    planned_job(cast.team, nodes=(4, 4), hours=5.6)
    job = planned_job(cast.team, nodes=(4, 4), hours=12.0)
    plans_tick(now=NOW)
    assert state(job).waits_on == "quota"
    for code, words, place in (
        ("quota", "es fehlen GPUs", 1), ("machines", "team quota: 0 of 4", None), ("", "", None), ("spot", "", 1)
    ):  # fmt: skip
        PlanState.objects.filter(job=job).update(waits_on=code, waits_for=words)
        assert queue_places(teams={cast.team.pk}).get(job.pk) == place


def test_what_was_only_words_before_gets_its_code(cast: Cast) -> None:
    Team.objects.filter(pk=cast.team.pk).update(max_gpus=8)
    none = make_market(spot=0, past=[0] * 100, zone="b", price=0.5)
    Offer.objects.filter(pk=none.pk).update(region="far")
    planned_job(cast.team, nodes=(4, 4), hours=5.6)
    for extra in ({}, {"regions": ["far"]}, {"max_price": 0.1}):
        planned_job(cast.team, nodes=(8, 8), hours=40.0, policy="only", resources=extra)
    planned_job(cast.team, nodes=(1, 1), hours=40.0, budget_usd="0.01")
    planned_job(cast.team, nodes=(4, 4), hours=5.2, resources={"regions": ["far"], "policy": "OnDemandOnly"})
    plans_tick(now=NOW)
    plans_tick(now=later(301))
    before = dict(PlanState.objects.values_list("job", "waits_on"))
    assert set(before.values()) >= {"quota", "spot", "offer", "budget", "machines"}
    PlanState.objects.update(waits_on="")
    import_module("jobs.migrations.0018_plan_waits_on").read_off(apps, None)
    assert dict(PlanState.objects.values_list("job", "waits_on")) == before
