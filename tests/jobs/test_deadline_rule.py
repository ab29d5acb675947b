"""A job that will be late: from its reports to an order to resize."""

from __future__ import annotations

import datetime as dt

import pytest
from django.utils import timezone

from jobs.models import Attempt, Command, Job, Worker
from jobs.planning import deadline_evaluate
from jobs.services.approvals import decision_approve
from jobs.services.attempts import attempt_open, attempt_start
from tests.factories import make_cast, make_job

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 8)


def late_job(**fields):
    now = timezone.now()
    cast = make_cast()
    job = make_job(
        cast.team,
        status="queued",
        now=now,
        goal_steps=1000,
        num_workers=2,
        deadline=now + dt.timedelta(hours=1),
        **fields,
    )
    attempt, _ = attempt_open(job=job, num_workers=2, now=now)
    hello = {"world_size": 2, "start_step": 0, "planned_steps": 1000, "capabilities": ["resize", "snapshot"]}
    attempt_start(attempt=attempt, now=now - dt.timedelta(seconds=500), hello=hello)
    Attempt.objects.filter(pk=attempt.pk).update(last_step=99, heartbeat_at=now)
    Worker.objects.filter(attempt=attempt).update(step_time_s=5.0)
    Job.objects.filter(pk=job.pk).update(current_step=100)
    job.refresh_from_db()
    return cast, job, attempt, now


def test_a_late_job_asks_for_workers_once_and_a_yes_orders_them():
    cast, job, _, now = late_job()
    (decision,) = deadline_evaluate(job=job, now=now)
    assert (decision.kind, decision.args["num_workers"], decision.direction) == ("resize", 3, "forward")
    assert deadline_evaluate(job=job, now=now) == []
    decision_approve(decision=decision, user=cast.approver, now=now)
    order = Command.objects.get(kind="resize")
    assert (order.args["num_workers"], order.decision_id) == (3, decision.pk)
    assert deadline_evaluate(job=job, now=now) == []  # while the resize is under way


def test_nothing_is_asked_of_a_trainer_that_cannot_or_beyond_the_job_file():
    _, job, attempt, now = late_job(config={"resources": {"nodes": {"min": 1, "max": 2}}})
    assert deadline_evaluate(job=job, now=now) == []
    Job.objects.filter(pk=job.pk).update(config={})
    job.refresh_from_db()
    assert len(deadline_evaluate(job=job, now=now)) == 1
    job.decisions.all().delete()
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["snapshot"])
    assert deadline_evaluate(job=job, now=now) == []


def test_a_local_job_gets_no_more_workers_than_there_are_cores(monkeypatch):
    _, job, _, now = late_job()
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert deadline_evaluate(job=job, now=now) == []
