"""The demo's person: moves the deadline nearer once, where one worker would be late for it and two can be had."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.test import Client
from django.utils import timezone

from jobs.demo.market_job import SETTLED_S, STEPS, Sooner, sooner_s
from jobs.models import Instance, Job, Offer
from jobs.services.tokens import token_create
from tests.factories import make_member, make_team
from tests.planning.world import hold, make_market, on_demand_offer, planned_job, quote, train

pytestmark = pytest.mark.django_db


@pytest.fixture
def job() -> Job:
    """On two spot machines, with a deadline in an hour."""
    now = timezone.now()
    made = planned_job(make_team(), nodes=(1, 2), goal_steps=STEPS, step_time_s=0.5)
    make_market(spot=2, now=now)
    Job.objects.filter(pk=made.pk).update(deadline=now + dt.timedelta(hours=1))
    made.refresh_from_db()
    return made


@pytest.fixture
def person(job: Job) -> Iterator[Sooner]:
    now, user = timezone.now(), make_member(job.team, "operator")
    _, secret = token_create(team=job.team, name="demo", scopes=["read", "operate"], user=user, now=now)
    browser = Client(headers={"Authorization": f"Bearer {secret}"})

    def answer(request: httpx.Request) -> httpx.Response:
        path, content = request.url.raw_path.decode(), request.content
        found = browser.generic(request.method, path, content, content_type="application/json")
        return httpx.Response(found.status_code, content=found.content)

    with httpx.Client(transport=httpx.MockTransport(answer), base_url="http://testserver/api/v1") as api:
        yield Sooner(api, twin_step_s=0.5)


def look(person: Sooner, job: Job) -> str:
    shown: dict[str, Any] = person.api.get(f"/jobs/{job.uuid}/").raise_for_status().json()
    return person.look(shown)


def on_one_spot_machine(job: Job, since_s: float) -> None:
    """It trains there since so many seconds, a step a second."""
    Instance.objects.filter(job=job).update(status="terminated", ended_at=timezone.now())
    hold(job, Offer.objects.get(is_spot=True), 1)
    job.attempts.update(status="resized", ended_at=timezone.now())
    train(job, workers=1, steps=int(since_s), step_time_s=1.0, until=timezone.now())


def test_the_deadline_is_moved_once_where_the_job_has_come_back_to_one_of_two_machines(
    job: Job, person: Sooner
) -> None:
    on_one_spot_machine(job, 30)
    assert look(person, job) == "", "there was no on-demand yet"
    Instance.objects.filter(job=job).update(status="terminated", ended_at=timezone.now())
    hold(job, on_demand_offer(), 1)
    assert look(person, job) == "", "it is on on-demand"
    on_one_spot_machine(job, SETTLED_S - 2)
    assert look(person, job) == "", "its pace is not settled"
    on_one_spot_machine(job, 30)
    before = timezone.now()
    left_s = sooner_s(STEPS - 30, {1: 1.0, 2: 0.5})
    assert look(person, job) == f"Wanted sooner: {STEPS - 30} steps within {left_s:.0f} s."
    job.refresh_from_db()
    assert job.deadline is not None
    assert abs((job.deadline - before).total_seconds() - left_s) < 5
    assert 0.5 * (STEPS - 30) < left_s - 18 < 1.0 * (STEPS - 30), "two make it and one does not"
    assert look(person, job) == ""


def test_the_deadline_stays_where_no_second_machine_can_be_had_or_the_job_takes_it_by_itself(
    job: Job, person: Sooner
) -> None:
    person.had_on_demand = True
    spot = Offer.objects.get(is_spot=True)
    quote(spot, at=timezone.now(), spot=1)
    on_one_spot_machine(job, 30)
    assert look(person, job) == ""
    quote(spot, at=timezone.now(), spot=2)
    hold(job, spot, 1)
    assert look(person, job) == ""
    on_one_spot_machine(job, 30)
    assert look(person, job) == "", "it has had two since"
