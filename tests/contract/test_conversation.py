"""The real trainer client against the real server over HTTP: they share no code, so this is what binds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Attempt, Directive, Job, JobShard, Report
from jobs.selectors.series import shard_series
from jobs.services.attempts import attempt_open
from jobs.services.directives import directive_issue
from jobs.services.shards import revision_create, revision_file
from tests.contract.conftest import Server
from tests.factories import make_attempt, make_job
from tests.services import wait_until
from trainer_client.client import SchedulerClient
from trainer_client.protocol import EXIT_SUPERSEDED
from trainer_client.session import Session, SessionConfig

pytestmark = pytest.mark.timeout(120)
SHARDS = ("shard_000", "shard_001", "shard_002")


def begin(server: Server, folder: Path) -> tuple[Job, Attempt, Session]:
    """A queued job with an open attempt, and a trainer's session for it."""
    job = make_job(status="queued", num_workers=1, now=timezone.now(), goal_steps=20)
    attempt, secret = make_attempt(job, running=False, num_workers=1, now=timezone.now())
    session = Session(SessionConfig(folder / "run", server.url, str(attempt.uuid), secret))
    return job, attempt, session


def report(session: Session, steps: range, loss: float = 2.0) -> None:
    for step in steps:
        session.report_step(
            step, shards=dict.fromkeys(SHARDS, (loss * 10, 10, 1)), step_time_s=0.1, grad_norm=1.0, lr=1e-3
        )


def flushed(session: Session) -> bool:
    assert session.reporter is not None
    return session.reporter.flush(20)


def tokens_of(job: Job) -> int:
    return int(shard_series(job=job, since_step=0, level=0).tokens.sum())


def test_a_run_from_start_to_finish_is_understood_on_both_sides(server, tmp_path):
    job, attempt, session = begin(server, tmp_path)
    session.on("set_weights", lambda args, data, step: None)
    session.start(planned_steps=20, shards=[(s, 100) for s in SHARDS])
    wait_until(lambda: Job.objects.get(pk=job.pk).status == "running", within_s=20, what="the start has arrived")
    directive = directive_issue(
        attempt=Attempt.objects.get(pk=attempt.pk), action="set_weights", args={"weights": {"shard_000": 3.0}},
        now=timezone.now(), not_before_step=2,
    )  # fmt: skip
    report(session, range(10))
    assert flushed(session)
    wait_until(lambda: session.control_point(10).changed, within_s=20, what="the directive is applied")
    report(session, range(10, 20))
    assert session.finish(outcome="done", step=20, exit_code=0) == 0
    directive.refresh_from_db()
    assert (directive.status, directive.applied_step) == ("applied", 10)
    assert JobShard.objects.get(job=job, shard__key="shard_000").weight == 3.0
    assert tokens_of(job) == 20 * 3 * 10
    job.refresh_from_db()
    assert (job.status, job.current_step) == ("succeeded", 20)
    assert Attempt.objects.get(pk=attempt.pk).status == "done"


def test_samples_of_a_new_revision_are_fetched_with_their_checksum(server, tmp_path):
    job, attempt, session = begin(server, tmp_path)
    received: list[bytes] = []
    session.on("add_shard", lambda args, data, step: received.append(data))  # type: ignore[func-returns-value, arg-type]
    session.start(planned_steps=20)
    shard = job.dataset.shards.get(key="shard_001")
    samples = [{"prompt": f"p{i}", "response": "r", "parent": "x-1"} for i in range(50)]
    revision = revision_create(shard=shard, samples=samples, origin="augmentation", now=timezone.now())
    url = f"/api/v1/attempts/{attempt.uuid}/revisions/{revision.uuid}/samples/"
    args: dict[str, Any] = {
        "shard": "shard_001", "revision": str(revision.uuid), "number": revision.number, "url": url,
        "sha256": revision.sha256, "num_samples": 50, "mode": "replace", "weight": 1.0, "resume": True,
    }  # fmt: skip
    directive_issue(attempt=Attempt.objects.get(pk=attempt.pk), action="add_shard", args=args, now=timezone.now())
    report(session, range(2))
    assert flushed(session)
    wait_until(lambda: session.control_point(2).changed, within_s=20, what="the samples are there")
    session.finish(outcome="done", step=2, exit_code=0)
    assert received == [revision_file(revision).read_bytes()]
    assert JobShard.objects.get(job=job, shard=shard).revision == revision


def test_a_directive_that_the_trainer_cannot_do_comes_back_refused(server, tmp_path):
    _, attempt, session = begin(server, tmp_path)
    session.start(planned_steps=20)
    directive = directive_issue(
        attempt=Attempt.objects.get(pk=attempt.pk), action="set_global_batch", args={"samples": 64}, now=timezone.now()
    )
    report(session, range(2))
    assert flushed(session)

    def refused() -> bool:
        session.control_point(2)
        return Directive.objects.get(pk=directive.pk).status == "refused"

    wait_until(refused, within_s=20, what="the refusal has arrived")
    session.finish(outcome="done", step=2, exit_code=0)


def test_what_was_reported_while_the_server_was_away_arrives_once(server, tmp_path):
    job, _, session = begin(server, tmp_path)
    session.start(planned_steps=20)
    report(session, range(5))
    assert flushed(session)
    server.stop()
    report(session, range(5, 15))
    assert session.reporter is not None
    assert not session.reporter.flush(1.5)
    server.start()
    report(session, range(15, 20))
    assert flushed(session)
    session.finish(outcome="done", step=20, exit_code=0)
    assert tokens_of(job) == 20 * 3 * 10
    seqs = list(Report.objects.filter(attempt__job=job).values_list("seq", flat=True).order_by("seq"))
    assert seqs == list(range(len(seqs)))


def test_a_loss_that_is_no_number_arrives_as_such_and_the_rest_is_kept(server, tmp_path):
    job, _, session = begin(server, tmp_path)
    session.start(planned_steps=20)
    session.report_step(
        0, shards={"shard_000": (float("nan"), 10, 1), "shard_001": (20.0, 10, 1)}, grad_norm=float("inf")
    )
    assert flushed(session)
    series = shard_series(job=job, since_step=0, level=0)
    assert (int(series.num_nonfinite.sum()), int(series.tokens.sum())) == (1, 10)
    session.finish(outcome="done", step=1, exit_code=0)


def test_a_trainer_that_was_followed_by_a_newer_attempt_leaves(server, tmp_path):
    job, _, session = begin(server, tmp_path)
    session.start(planned_steps=20)
    report(session, range(3))
    assert flushed(session)
    attempt_open(job=Job.objects.get(pk=job.pk), num_workers=1, now=timezone.now())
    report(session, range(3, 6))
    flushed(session)

    def leaves() -> bool:
        leave = session.control_point(6).leave
        return leave is not None and leave.exit_code == EXIT_SUPERSEDED

    wait_until(leaves, within_s=20, what="the trainer knows that it is over")
    session.finish(outcome="stopped", step=6, exit_code=EXIT_SUPERSEDED)
    assert Job.objects.get(pk=job.pk).status == "running"


def test_a_simple_script_reports_one_shard(server, tmp_path):
    job = make_job(status="queued", num_workers=1, now=timezone.now())
    _, secret = make_attempt(job, num_workers=1, now=timezone.now())
    with SchedulerClient(server.url, str(job.uuid), secret) as client:
        sent = [
            client.report_shard_stats(
                {"shard_id": "shard_000", "loss": loss, "gradient_norm": 0.5, "throughput": 100.0}
            )
            for loss in (2.0, float("nan"))
        ]
    assert sent == [True, True]
    assert json.dumps(sorted(Report.objects.filter(attempt__job=job).values_list("seq", flat=True))) == "[0, 1]"
