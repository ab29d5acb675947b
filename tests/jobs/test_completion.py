"""A job with a target loss: its forecast is kept, and its trainer is told to finish when the target is reached."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from django.utils import timezone

from jobs.models import Attempt, Directive, Event, Job
from jobs.planning import job_evaluate
from jobs.selectors.job_report import job_report
from jobs.selectors.jobs import job_lines
from jobs.selectors.loss_curves import held_out_curve
from jobs.services.attempts import attempt_finish
from jobs.services.evaluations import evaluation_note
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.api.http import client_for, strict
from tests.factories import NOW, make_attempt, make_cast, make_job
from tests.ingest.bodies import report

pytestmark = pytest.mark.django_db


def feed(attempt: Attempt, start: int, stop: int, *, shift: float = 0.0) -> None:
    """A power law with a little noise, on three shards."""
    chance = np.random.default_rng(start + 1)
    points = []
    for step in range(start, stop):
        loss = 1.0 + shift + 3 * ((step + 20) / 20) ** -0.6
        points += [(step, f"shard_{s:03d}", (loss + 0.03 * chance.standard_normal()) * 40, 40) for s in range(3)]
    report_add(attempt=attempt, batch=report_parse(json.dumps(report(0, start, points=points)).encode()), now=NOW)


def evaluate(job: Job) -> Any:
    job.refresh_from_db()
    return job_evaluate(job=job, now=NOW)


@pytest.fixture
def running() -> tuple[Job, Attempt]:
    job = make_job(status="queued", goal_loss=1.5)
    attempt, _ = make_attempt(job, num_workers=1)
    return job, attempt


def test_the_forecast_stands_beside_the_progress_and_moves_the_finish(running: tuple[Job, Attempt]) -> None:
    job, attempt = running
    feed(attempt, 0, 200)
    Attempt.objects.filter(pk=attempt.pk).update(running_at=NOW)
    evaluate(job)
    job.refresh_from_db()
    (line,) = job_lines(jobs=[job], now=NOW)
    found = line.progress.completion
    assert found is not None
    assert found.ends.low <= 377 <= found.ends.high, "where the law itself gets to 1.5"
    assert found.sentence().endswith("to loss 1.5")


def test_a_target_that_is_reached_ends_the_job_as_succeeded_with_the_reason(running: tuple[Job, Attempt]) -> None:
    job, attempt = running
    feed(attempt, 0, 100)
    evaluate(job)
    assert not Directive.objects.filter(action="stop").exists()
    feed(attempt, 100, 160, shift=-0.6)
    evaluate(job)
    feed(attempt, 160, 180, shift=-0.6)
    evaluate(job)
    order = Directive.objects.get(action="stop")  # once, however often it is looked at
    assert order.args["outcome"] == "done"
    assert "target loss 1.5 reached: 1." in order.args["reason"]
    assert Event.objects.filter(job=job, kind="job.goal_reached").count() == 1
    attempt_finish(attempt=attempt, now=NOW, outcome="done", word={"exit_code": 0, "message": order.args["reason"]})
    job.refresh_from_db()
    assert (job.status, job.failure_message) == ("succeeded", "")
    assert order.args["reason"] in Event.objects.filter(job=job, kind="job.succeeded").get().text
    told = job_report(job=job, now=NOW)["job"]
    assert (told["goal_loss"], told["goal_reached"]["target"]) == (1.5, 1.5)


def test_a_job_that_is_evaluated_is_done_by_what_it_holds_out(running: tuple[Job, Attempt]) -> None:
    job, attempt = running
    feed(attempt, 0, 100, shift=-1.5)
    evaluation_note(attempt=attempt, step=50, loss=2.5, tokens=90, shards={"shard_000": 2.5}, now=NOW)
    evaluate(job)
    assert not Directive.objects.filter(action="stop").exists(), (
        "the training loss is there, but that is not what counts"
    )
    for _ in range(2):  # a repeat changes nothing
        evaluation_note(attempt=attempt, step=100, loss=1.4, tokens=90, shards={"shard_000": 1.4}, now=NOW)
    feed(attempt, 100, 120)
    evaluate(job)
    assert Directive.objects.get(action="stop").args["reason"] == "target loss 1.5 reached: 1.4 on the held-out samples"
    assert list(held_out_curve(job).steps) == [50, 100]
    later, _ = make_attempt(job, num_workers=1)
    Attempt.objects.filter(pk=later.pk).update(start_step=60)
    evaluation_note(attempt=later, step=70, loss=None, tokens=90, shards={}, now=NOW)
    assert list(held_out_curve(job).steps) == [50], "steps of a lost branch do not count"


def test_the_trainer_tells_its_evaluations_and_everybody_may_read_them(client: object) -> None:
    cast = make_cast()
    job = make_job(cast.team, status="queued")
    attempt, secret = make_attempt(job, now=timezone.now())
    body = {"protocol": 1, "step": 20, "loss": None, "tokens": 7, "shards": {"shard_000": 2.5, "shard_001": None}}
    url, headers = f"/api/v1/attempts/{attempt.uuid}/evaluations/", {"Authorization": f"Bearer {secret}"}
    post = client.post  # type: ignore[attr-defined]
    assert post(url, body, content_type="application/json", headers=headers).status_code == 200
    assert post(url, {**body, "step": -1}, content_type="application/json", headers=headers).status_code == 400
    (found,) = strict(client_for(cast.team, cast.viewer).get(f"/api/v1/jobs/{job.uuid}/evaluations/"))["results"]
    assert (found["step"], found["loss"], found["shards"]) == (20, None, {"shard_000": 2.5, "shard_001": None})
