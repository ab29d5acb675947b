"""`POST jobs/{id}/resize/`: who may, once per key, and clear refusals."""

from __future__ import annotations

import pytest

from jobs.models import Attempt, Command, Job, Member
from tests.api.http import client_for, strict
from tests.factories import Cast, make_attempt, make_cast, make_job

pytestmark = pytest.mark.django_db


def small_world() -> tuple[Cast, Job, str]:
    cast = make_cast()
    job = make_job(cast.team, status="queued")
    attempt, _ = make_attempt(job)
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["resize"])
    return cast, job, f"/api/v1/jobs/{job.uuid}/resize/"


def test_an_operator_orders_a_resize_and_a_repeat_with_the_key_gets_the_same_order():
    cast, job, url = small_world()
    client = client_for(cast.team, cast.operator)
    answers = [client.post(url, {"num_workers": 4}, format="json", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert strict(answers[0]) == strict(answers[1])
    assert Command.objects.get(kind="resize", job=job).args["num_workers"] == 4
    assert strict(client.get(f"/api/v1/commands/{strict(answers[0])['id']}/"))["kind"] == "resize"


def test_a_viewer_may_not_and_a_stranger_finds_nothing():
    cast, _, url = small_world()
    assert client_for(cast.team, cast.viewer).post(url, {"num_workers": 4}, format="json").status_code == 403
    stranger = client_for(Member.objects.get(user=cast.outsider).team, cast.outsider)
    assert stranger.post(url, {"num_workers": 4}, format="json").status_code == 404
    assert not Command.objects.filter(kind="resize").exists()


def test_refusals_are_problems_that_say_why():
    cast, job, url = small_world()
    client = client_for(cast.team, cast.operator)
    too_many = client.post(url, {"num_workers": 17}, format="json")
    assert (too_many.status_code, list(strict(too_many)["fields"])) == (400, ["num_workers"])
    same = client.post(url, {"num_workers": 2}, format="json")
    assert (same.status_code, strict(same)["code"]) == (409, "conflict")
    Job.objects.filter(pk=job.pk).update(status="paused")
    paused = client.post(url, {"num_workers": 3}, format="json")
    assert (paused.status_code, strict(paused)["state"]) == (409, "paused")
