"""Boost and demote over REST, on the page and through a decision; the queue that shows them."""

from __future__ import annotations

import pytest

from jobs.epoch import plans_tick
from jobs.models import Command, Event, PlanState, Team
from jobs.services.approvals import decision_approve
from tests.api.http import client_for, strict
from tests.factories import NOW, Cast, make_cast, make_decision, make_job
from tests.planning.world import make_market, planned_job
from workers.execute import command_execute

pytestmark = pytest.mark.django_db
WHY = "The release waits for it."


@pytest.fixture
def cast() -> Cast:
    return make_cast()


def test_an_operator_boosts_a_job_with_a_reason_and_takes_it_back(cast: Cast) -> None:
    job = make_job(cast.team, status="queued", priority=3)
    client, url = client_for(cast.team, cast.operator), f"/api/v1/jobs/{job.uuid}"
    told = strict(client.post(f"{url}/boost/", {"points": 5, "reason": WHY}, format="json"))
    assert (told["priority"], told["boost"], told["boost_reason"]) == (3, 5, WHY)
    event = Event.objects.get(kind="job.boosted")
    assert (event.actor, event.data) == (cast.operator.email, {"points": 5})
    assert strict(client.post(f"{url}/demote/", {"points": 2, "reason": WHY}, format="json"))["boost"] == -2
    assert strict(client.post(f"{url}/boost/", {"points": 0}, format="json"))["boost"] == 0
    assert client_for(cast.team, cast.viewer).post(f"{url}/boost/", {"points": 1}, format="json").status_code == 403


def test_a_boost_without_a_reason_or_beyond_its_range_or_of_a_job_that_is_over_is_refused(cast: Cast) -> None:
    job, over = make_job(cast.team, status="queued"), make_job(cast.team, status="succeeded")
    client = client_for(cast.team, cast.operator)
    for body, field in (({"points": 5}, "reason"), ({"points": 101, "reason": WHY}, "points")):
        answer = client.post(f"/api/v1/jobs/{job.uuid}/boost/", body, format="json")
        assert (answer.status_code, list(strict(answer)["fields"])) == (400, [field])
    answer = client.post(f"/api/v1/jobs/{over.uuid}/boost/", {"points": 5, "reason": WHY}, format="json")
    assert (answer.status_code, strict(answer)["code"]) == (409, "conflict")


def test_the_queue_shows_place_priority_and_its_parts_over_rest_and_on_the_pages(cast: Cast, client: object) -> None:
    make_market(spot=8, past=[8] * 100)
    Team.objects.filter(pk=cast.team.pk).update(max_gpus=4)
    first = planned_job(cast.team, nodes=(4, 4), hours=6.0, priority=5)
    second = planned_job(cast.team, nodes=(4, 4), hours=12.0, priority=1)
    plans_tick(now=NOW)
    told = strict(client_for(cast.team, cast.operator).get(f"/api/v1/jobs/{second.uuid}/"))
    assert (told["queue_place"], told["waits_for"]) == (1, "team quota: 4 of 4 GPUs are with other jobs")
    parts = told["effective_priority"]
    assert (parts["file"], parts["effective"]) == (1, PlanState.objects.get(job=second).priority)
    client.force_login(cast.operator)  # type: ignore[attr-defined]
    page = client.get(f"/jobs/{second.uuid}/").content.decode()  # type: ignore[attr-defined]
    assert "Place in the queue" in page
    assert "<b>Number 1</b>: team quota: 4 of 4 GPUs are with other jobs." in page
    assert "number 1 in the queue with" in client.get("/jobs/").content.decode()  # type: ignore[attr-defined]
    assert "Machines are being started: 0 of 4." in client.get(f"/jobs/{first.uuid}/").content.decode()  # type: ignore[attr-defined]
    answer = client.post(f"/jobs/{second.uuid}/do/boost/", {"points": "-4", "reason": WHY}, follow=True)  # type: ignore[attr-defined]
    assert "has -4 points on top of its priority of 1" in answer.content.decode()


def test_a_decision_to_demote_is_carried_out_with_its_sentence_as_the_reason(cast: Cast) -> None:
    job = planned_job(cast.team)
    decision = make_decision(
        job,
        rule="completion",
        kind="demote",
        subject="priority",
        sentence="Demote by 3: flat.",
        args={"points": 3},
        allowed={},
    )
    decision_approve(decision=decision, now=NOW, user=cast.approver, seen_args=decision.args)
    command_execute(Command.objects.get(kind="demote").pk)
    job.refresh_from_db()
    decision.refresh_from_db()
    assert (job.boost, job.boost_reason, decision.status) == (-3, f"{decision}: Demote by 3: flat.", "succeeded")
