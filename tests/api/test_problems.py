"""Errors in one form, and JSON that is JSON, in and out."""

from __future__ import annotations

import json

import pytest
from django.db import OperationalError
from django.test import RequestFactory

from jobs import errors
from jobs.models import Job
from tests.api.http import client_for, strict
from tests.factories import make_cast, make_dataset, make_decision, make_job
from webapp.api.problems import DOMAIN, exception_handler, server_error
from webapp.api.strict import StrictJSONRenderer

pytestmark = pytest.mark.django_db


def domain_errors(base=errors.DomainError):
    return [
        base,
        *(
            found
            for child in base.__subclasses__()
            if child.__module__ == "jobs.errors"
            for found in domain_errors(child)
        ),
    ]


@pytest.mark.parametrize("error", domain_errors())
def test_every_domain_error_has_its_place_in_the_table(error):
    assert error in DOMAIN
    answer = exception_handler(error("Words.", status="approved"), {})
    assert answer is not None
    assert (answer.data["code"], answer.data["detail"], answer.data["state"]) == (error.code, "Words.", "approved")
    assert answer.data["status"] == answer.status_code


def test_a_busy_database_is_503_with_a_time_to_come_back():
    answer = exception_handler(OperationalError("database is locked"), {})
    assert answer is not None
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")


def test_our_own_faults_are_not_dressed_up():
    assert exception_handler(KeyError("x"), {}) is None


@pytest.mark.parametrize(
    "number",
    ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "9" * 400, '"nan"', '"1e400"', '"\\u0000"', '"\\ud800"'],
)
@pytest.mark.parametrize("place", ["goal_loss", "training", "weights", "autonomy"])
def test_numbers_and_texts_that_cannot_be_stored_are_refused(number, place):
    cast = make_cast()
    dataset = make_dataset(cast.team)
    value = number if place == "goal_loss" else f'{{"lr": {number}, "shard_000": {number}}}'
    body = f'{{"name": "j", "model": "m", "goal_steps": 5, "dataset": "{dataset.uuid}", "{place}": {value}}}'
    answer = client_for(cast.team, cast.approver).post("/api/v1/jobs/", body, content_type="application/json")
    assert answer.status_code == 400, answer.content
    strict(answer)


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", "3", '"x"', "[" * 100_000, "\xff".encode("latin-1"), "{" * 3000]
)
def test_a_body_that_is_not_what_is_expected_is_400(body):
    cast = make_cast()
    answer = client_for(cast.team, cast.operator).post("/api/v1/jobs/", body, content_type="application/json")
    assert answer.status_code == 400, answer.content


def test_a_fault_of_ours_is_a_problem_in_the_api_and_a_page_elsewhere(monkeypatch):
    cast = make_cast()
    client = client_for(cast.team, cast.operator)
    client.raise_request_exception = False

    def fail(*args, **kwargs):
        raise RuntimeError("secret detail")

    monkeypatch.setattr("webapp.api.jobs.job_lines", fail)
    answer = client.get("/api/v1/jobs/")
    assert (answer.status_code, strict(answer)["code"]) == (500, "server_error")
    assert b"secret detail" not in answer.content
    page = server_error(RequestFactory().get("/jobs/"))
    assert page["Content-Type"].startswith("text/html")


def test_a_body_beyond_the_bound_is_413():
    cast = make_cast()
    body = json.dumps({"name": "x" * (9 * 2**20)})
    answer = client_for(cast.team, cast.operator).post("/api/v1/jobs/", body, content_type="application/json")
    assert (answer.status_code, strict(answer)["code"]) == (413, "too_large")


def test_a_stored_nan_leaves_a_list_readable():
    cast = make_cast()
    job = make_job(cast.team)
    make_decision(job, evidence={"z": 3.0})
    rendered = StrictJSONRenderer().render({"a": [float("nan"), 1.0, {"b": float("-inf")}], "c": (float("inf"),)})
    assert json.loads(rendered) == {"a": [None, 1.0, {"b": None}], "c": [None]}
    Job.objects.filter(pk=job.pk).update(training={"lr": 1.0})
    assert client_for(cast.team, cast.viewer).get("/api/v1/decisions/").status_code == 200


def test_an_address_that_does_not_exist_is_a_problem_too():
    cast = make_cast()
    client = client_for(cast.team, cast.viewer)
    for url in (
        "/api/v1/nothing/",
        "/api/nothing",
        "/api/v1/jobs/not-a-uuid/",
        "/api/v1/jobs/?page=999",
        "/api/v1/jobs/?page=x",
    ):
        answer = client.get(url)
        assert answer.status_code == 404, url
        assert answer["Content-Type"] == "application/problem+json", url
    assert client.put("/api/v1/jobs/").status_code == 405


@pytest.mark.parametrize(
    "query", ["status=\x00", "team=x", "text=" + "x" * 5000, "ordering=password", "page_size=-1", "page_size=x"]
)
def test_a_strange_query_is_answered_without_a_fault(query):
    cast = make_cast()
    assert client_for(cast.team, cast.viewer).get(f"/api/v1/jobs/?{query}").status_code in (200, 400)


@pytest.mark.parametrize("query", ["before=x", "after=-1", "before=" + "9" * 30, "page_size=0", "kind=a.b.c"])
def test_a_strange_cursor_is_answered_without_a_fault(query):
    cast = make_cast()
    assert client_for(cast.team, cast.viewer).get(f"/api/v1/events/?{query}").status_code in (200, 400)
