"""Reports of simple scripts."""

from __future__ import annotations

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.models import Report, Worker
from tests.api.http import client_for, strict
from tests.factories import make_attempt, make_cast, make_job
from trainer_client.client import shard_stats_body

pytestmark = pytest.mark.django_db


def running(cast):
    job = make_job(cast.team, status="queued")
    _, secret = make_attempt(job, now=timezone.now())
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {secret}")
    return job, client, f"/api/v1/jobs/{job.uuid}/shard_stats/"


def test_a_script_reports_a_shard_step_by_step():
    job, client, url = running(make_cast())
    for loss in (2.0, 1.5, float("nan")):
        body = shard_stats_body(
            {"shard_id": "shard_000", "loss": loss, "gradient_norm": 0.8, "throughput": 910.0, "tokens": 300}
        )
        answer = client.post(url, body)
        assert (answer.status_code, strict(answer)) == (200, {"accepted": 1, "duplicate": False})
    assert Report.objects.count() == 3
    assert Worker.objects.get(attempt__job=job, rank=0).last_step == 2


def test_an_unknown_shard_or_a_bad_number_is_refused():
    _, client, url = running(make_cast())
    assert client.post(url, {"shard_id": "nope", "loss": 1.0}).status_code == 400
    assert client.post(url, {"shard_id": "shard_000", "loss": "nan"}).status_code == 400
    assert client.post(url, {"shard_id": "shard_000", "loss": 1.0, "tokens": 0}).status_code == 400


def test_a_job_that_does_not_run_takes_no_reports():
    cast = make_cast()
    job = make_job(cast.team)
    client = client_for(cast.team, cast.operator, "ingest")
    answer = client.post(f"/api/v1/jobs/{job.uuid}/shard_stats/", {"shard_id": "shard_000", "loss": 1.0})
    assert answer.status_code == 409


def test_only_tokens_that_fit_the_job_may_report():
    cast = make_cast()
    _, client, url = running(cast)
    _, other, _ = running(cast)
    body = {"shard_id": "shard_000", "loss": 1.0, "step": 5}
    assert client.post(url, body).status_code == 200
    assert other.post(url, body).status_code == 404
    assert client_for(cast.team, cast.operator, "ingest").post(url, body).status_code == 200
    assert client_for(cast.team, cast.operator, "read").post(url, body).status_code == 403
    assert client_for(cast.team, cast.viewer, "ingest").post(url, body).status_code == 404
    assert client_for(cast.outsider.memberships.get().team, cast.outsider, "ingest").post(url, body).status_code == 404
