"""A job on whose machines no agent ever spoke: page, list and REST say that it is held, and a person lets it go on."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.urls import reverse

from jobs.epoch import plans_tick
from jobs.machines import DUD
from jobs.models import Instance, Job, PlanState
from jobs.selectors.duds import MAX_DUDS
from jobs.selectors.jobs import queue_places
from tests.factories import NOW, Cast, make_cast
from tests.planning.world import make_market, planned_job

pytestmark = pytest.mark.django_db
WORDS = "held: no agent spoke on the last 3 machines"


@pytest.fixture
def cast() -> Cast:
    return make_cast()


@pytest.fixture
def held(cast: Cast) -> Job:
    offer = make_market(spot=4)
    job = planned_job(cast.team, hours=8.0)
    for number in range(MAX_DUDS):
        Instance.objects.create(
            team=job.team, job=job, offer=offer, claim=f"dud-{number}", backend=offer.provider, kind="spot",
            status="terminated", detail=DUD, created_at=NOW, status_at=NOW, started_at=NOW, ended_at=NOW,
        )  # fmt: skip
    plans_tick(now=NOW)
    return job


def test_a_held_job_says_so_and_waits_in_no_queue(cast: Cast, held: Job) -> None:
    state = PlanState.objects.get(job=held)
    assert state.waits_on == "held"
    assert WORDS in state.waits_for
    assert queue_places(teams={cast.team.pk}) == {}
    client = Client()
    client.force_login(cast.operator)
    assert client.get(f"/api/v1/jobs/{held.uuid}/").json()["waits_for"] == state.waits_for
    for url in (reverse("jobs"), reverse("job", args=[held.uuid])):
        assert WORDS in client.get(url).content.decode()


def test_an_operator_lets_it_go_on_from_its_page_and_a_viewer_may_not(cast: Cast, held: Job) -> None:
    url, client = reverse("job", args=[held.uuid]), Client()
    act = reverse("job_act", args=[held.uuid, "resume"])
    client.force_login(cast.viewer)
    assert act not in client.get(url).content.decode()
    client.force_login(cast.operator)
    assert f'action="{act}"' in client.get(url).content.decode()
    assert client.post(act).status_code == 302
    plans_tick(now=NOW + dt.timedelta(minutes=10))
    assert PlanState.objects.get(job=held).waits_on != "held"
    assert f'action="{act}"' not in client.get(url).content.decode()
    assert client.post(f"/api/v1/jobs/{held.uuid}/resume/").status_code == 409
