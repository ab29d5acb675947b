"""The same POST twice does its work once."""

from __future__ import annotations

from functools import partial

import pytest
from django.utils import timezone

from jobs.models import Command, IdempotencyKey, Job
from jobs.services import jobs as job_services
from jobs.services.idempotency import idempotency_prune
from tests.api.http import client_for, strict
from tests.api.together import together
from tests.factories import make_cast, make_dataset, make_decision, make_job

at_once = pytest.mark.django_db(transaction=True)
pytestmark = [pytest.mark.django_db, pytest.mark.services]


def body_for(dataset, **more):
    return {"name": "tune", "model": "tiny:1m", "dataset": str(dataset.uuid), "goal_steps": 100, "submit": True, **more}


@at_once
def test_ten_at_once_make_one_job_and_get_identical_answers():
    cast = make_cast()
    dataset = make_dataset(cast.team)
    clients = [client_for(cast.team, cast.operator) for _ in range(10)]
    send = {"HTTP_IDEMPOTENCY_KEY": "k1"}
    answers = together([partial(c.post, "/api/v1/jobs/", body_for(dataset), **send) for c in clients])
    assert {a.status_code for a in answers} == {201}
    assert len({a.content for a in answers}) == 1
    assert sorted(a.get("Idempotency-Replayed", "") for a in answers) == [""] + ["true"] * 9
    assert (Job.objects.count(), Command.objects.filter(kind="launch").count()) == (1, 1)


def test_another_body_under_the_same_key_is_refused():
    cast = make_cast()
    dataset = make_dataset(cast.team)
    client = client_for(cast.team, cast.operator)
    assert client.post("/api/v1/jobs/", body_for(dataset), HTTP_IDEMPOTENCY_KEY="k").status_code == 201
    other = client.post("/api/v1/jobs/", body_for(dataset, name="other"), HTTP_IDEMPOTENCY_KEY="k")
    assert (other.status_code, strict(other)["code"]) == (422, "idempotency_key_reused")
    job = Job.objects.get()
    assert client.post(f"/api/v1/jobs/{job.uuid}/cancel/", HTTP_IDEMPOTENCY_KEY="k").status_code == 422


def test_the_key_of_one_person_means_nothing_for_another():
    cast = make_cast()
    dataset = make_dataset(cast.team)
    first = client_for(cast.team, cast.operator).post("/api/v1/jobs/", body_for(dataset), HTTP_IDEMPOTENCY_KEY="k")
    second = client_for(cast.team, cast.admin).post("/api/v1/jobs/", body_for(dataset), HTTP_IDEMPOTENCY_KEY="k")
    assert strict(first)["id"] != strict(second)["id"]


def test_a_crash_between_the_work_and_the_answer_can_be_repeated(monkeypatch):
    cast = make_cast()
    job = make_job(cast.team)
    client = client_for(cast.team, cast.operator)
    client.raise_request_exception = False
    url = f"/api/v1/jobs/{job.uuid}/submit/"

    def die(*args, **kwargs):
        job_services.job_submit(*args, **kwargs)
        raise RuntimeError("killed after the work")

    with monkeypatch.context() as patch:
        patch.setattr("webapp.api.jobs.job_submit", die)
        assert client.post(url, HTTP_IDEMPOTENCY_KEY="k").status_code == 500
    job.refresh_from_db()
    assert (job.status, Command.objects.count(), IdempotencyKey.objects.count()) == ("draft", 0, 0)
    done = client.post(url, HTTP_IDEMPOTENCY_KEY="k")
    again = client.post(url, HTTP_IDEMPOTENCY_KEY="k")
    assert (done.status_code, again.content) == (200, done.content)
    assert Command.objects.filter(kind="launch").count() == 1


def test_a_refusal_is_not_kept():
    cast = make_cast()
    dataset = make_dataset(cast.team)
    client = client_for(cast.team, cast.operator)
    assert client.post("/api/v1/jobs/", body_for(dataset, model=" "), HTTP_IDEMPOTENCY_KEY="k").status_code == 400
    assert client.post("/api/v1/jobs/", body_for(dataset), HTTP_IDEMPOTENCY_KEY="k").status_code == 201


@at_once
def test_an_approval_repeated_with_its_key_gets_its_200_again():
    cast = make_cast()
    decision = make_decision(make_job(cast.team, status="running"), now=timezone.now())
    clients = [client_for(cast.team, cast.approver) for _ in range(5)]
    url = f"/api/v1/decisions/{decision.uuid}/approve/"
    answers = together([partial(c.post, url, {"reason": "ok"}, HTTP_IDEMPOTENCY_KEY="yes") for c in clients])
    assert {a.status_code for a in answers} == {200}
    assert Command.objects.filter(decision=decision).count() == 1


@pytest.mark.parametrize("key", ["x" * 201, "a\nb"])
def test_a_key_that_cannot_be_kept_is_refused(key):
    cast = make_cast()
    answer = client_for(cast.team, cast.operator).post("/api/v1/datasets/", {"name": "d"}, HTTP_IDEMPOTENCY_KEY=key)
    assert answer.status_code == 400


def test_old_keys_are_deleted():
    cast = make_cast()
    client_for(cast.team, cast.operator).post("/api/v1/datasets/", {"name": "d"}, HTTP_IDEMPOTENCY_KEY="k")
    assert idempotency_prune(now=timezone.now()) == 0
    import datetime as dt

    assert idempotency_prune(now=timezone.now() + dt.timedelta(days=3)) == 1
