"""The report of a job: written once at its end, strict JSON, with losses around each decision."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from jobs.models import Decision, Job
from jobs.services.attempts import attempt_finish
from jobs.services.job_reports import job_report_write
from jobs.services.jobs import job_end
from tests.factories import NOW, make_decision, make_job
from tests.ingest.bodies import make_live_attempt, post, report
from tests.workers.world import command_of, order
from workers.execute import command_execute

pytestmark = pytest.mark.django_db


def job_with_losses(client: Client) -> Job:
    """40 steps; shard_000 falls from 3 to 1 nats per token at step 20, shard_001 stays at 2, shard_002 is never finite."""
    job = make_job(status="queued", goal_steps=40, deadline=timezone.now() + dt.timedelta(hours=1), now=timezone.now())
    attempt, secret = make_live_attempt(job)
    points: list[tuple[int, str, Any, int]] = []
    for step in range(40):
        points += [(step, "shard_000", 30.0 if step < 20 else 10.0, 10), (step, "shard_001", 20.0, 10)]
        points += [(step, "shard_002", "nan", 5)]
    answer = post(client, attempt, secret, "reports", report(points=points))
    assert answer.status_code == 200, answer.content
    return Job.objects.get(pk=job.pk)


def finished(job: Job) -> dict[str, Any]:
    attempt_finish(attempt=job.attempts.get(), now=timezone.now(), outcome="done", word={"totals": {"tokens": 800}})
    assert command_execute(command_of(job, "write_report").pk) == "done"
    return dict(Job.objects.get(pk=job.pk).report)


def test_the_report_says_what_each_shard_lost_and_learnt(client: Client) -> None:
    written = finished(job_with_losses(client))
    by_key = {row["shard"]: row for row in written["shards"]}
    assert (by_key["shard_000"]["loss_first"], by_key["shard_000"]["loss_last"]) == (3.0, 1.0)
    assert by_key["shard_000"]["change"] == -2.0
    assert by_key["shard_001"]["change"] == 0.0
    assert by_key["shard_002"]["loss_last"] is None
    assert by_key["shard_002"]["num_nonfinite"] == 40
    assert written["totals"]["tokens"] == 800
    assert written["job"]["met_deadline"] is True
    assert written["attempts"][0]["totals"] == {"tokens": 800}


def test_the_report_measures_the_loss_around_each_decision(client: Client) -> None:
    job = job_with_losses(client)
    decision = make_decision(job, now=timezone.now())
    Decision.objects.filter(pk=decision.pk).update(status="succeeded", applied_step=20)
    line = finished(job)["decisions"][0]
    assert (line["loss_before"], line["loss_after"]) == (3.0, 1.0)
    assert line["expected"]["delta_loss"]["expected"] == -1.2


def test_a_report_is_strict_json_and_never_written_twice(client: Client) -> None:
    job = job_with_losses(client)
    Job.objects.filter(pk=job.pk).update(budget_usd="12.50")
    written = finished(job)
    json.dumps(written, allow_nan=False)
    assert written["job"]["budget_usd"] == 12.5
    job.refresh_from_db()
    assert not job_report_write(job=job, now=timezone.now() + dt.timedelta(days=1))
    job.refresh_from_db()
    assert job.report == written


def test_a_job_that_never_ran_has_a_report_too() -> None:
    job = make_job(status="queued")
    job_end(job=job, to="cancelled", now=NOW, message="not needed")
    assert command_execute(command_of(job, "write_report").pk) == "done"
    job.refresh_from_db()
    assert job.report["shards"][0]["loss_first"] is None
    assert job.report["times"]["running_s"] is None


def test_the_report_waits_until_the_last_attempt_is_closed(client: Client) -> None:
    job = job_with_losses(client)
    job_end(job=job, to="cancelled", now=timezone.now())
    command = command_of(job, "write_report")
    assert command_execute(command.pk) == "waiting"
    Job.objects.filter(pk=job.pk).update(ended_at=timezone.now() - dt.timedelta(minutes=3))
    type(command).objects.filter(pk=command.pk).update(due_at=NOW)
    assert command_execute(command.pk) == "done"


def test_a_report_before_the_end_is_refused() -> None:
    job = make_job(status="running")
    assert command_execute(order(job, "write_report").pk) == "failed"
