"""Resizes and their proofs: who may have which size, what is refused, and what a loaded state that differs sets in motion."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.errors import Conflict, Invalid
from jobs.models import Attempt, Command, Event, Job, Snapshot
from jobs.services.attempts import attempt_finish, attempt_open, attempt_start
from jobs.services.resizes import job_resize
from jobs.services.snapshots import snapshot_note
from tests.factories import NOW, make_attempt, make_job

pytestmark = pytest.mark.django_db

SAVED, OTHER = "sha256:" + "a" * 64, "sha256:" + "b" * 64
PARTS = {"parameters": "1" * 64, "moments": "2" * 64}


def running_job(**fields: Any) -> tuple[Job, Attempt]:
    job = make_job(status="queued", **fields)
    attempt, _ = attempt_open(job=job, num_workers=job.num_workers, now=NOW)
    say_hello(attempt)
    job.refresh_from_db()
    return job, attempt


def say_hello(attempt: Attempt, **fields: Any) -> None:
    hello = {"world_size": attempt.world_size, "start_step": 0, "capabilities": ["resize", "stop"], **fields}
    attempt_start(attempt=attempt, now=NOW, hello=hello)
    attempt.refresh_from_db()


def saved_by(attempt: Attempt, step: int, digest: str = SAVED) -> Snapshot:
    return snapshot_note(
        attempt=attempt, name=f"step-{step:06d}-abcd", kind="gradient", status="verified", step=step, micro_step=2, now=NOW,
        uri="file:///x", digest=digest, parts=PARTS,
    )  # fmt: skip


def heir(job: Job, **hello: Any) -> Attempt:
    """The attempt that follows, after its hello."""
    attempt, _ = attempt_open(job=job, num_workers=3, now=NOW)
    say_hello(attempt, **hello)
    return attempt


def test_a_resize_is_ordered_once_at_a_time():
    job, _ = running_job()
    order = job_resize(job=job, num_workers=3, now=NOW)
    assert (order.kind, order.args) == ("resize", {"num_workers": 3, "before": 2})
    with pytest.raises(Conflict, match="resize to 3 workers is under way"):
        job_resize(job=job, num_workers=4, now=NOW)
    assert Command.objects.filter(kind="resize").count() == 1


@pytest.mark.parametrize("num_workers", [0, 1, 7, 17])
def test_a_size_outside_the_job_files_nodes_is_refused(num_workers):
    job, _ = running_job(config={"resources": {"nodes": {"min": 2, "max": 6}}})
    with pytest.raises(Invalid) as refused:
        job_resize(job=job, num_workers=num_workers, now=NOW)
    assert "From 2 to 6" in refused.value.extra["fields"]["num_workers"][0]


def test_a_job_has_at_most_one_worker_for_each_sample_of_its_global_batch():
    job, _ = running_job(training={"global_batch": 4})
    with pytest.raises(Invalid, match="cannot have 5 workers"):
        job_resize(job=job, num_workers=5, now=NOW)


def test_what_cannot_be_resized_now_says_why():
    job, attempt = running_job()
    with pytest.raises(Conflict, match="has 2 workers already"):
        job_resize(job=job, num_workers=2, now=NOW)
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["stop"])
    with pytest.raises(Conflict, match="does not know how to be resized"):
        job_resize(job=job, num_workers=3, now=NOW)
    for status, words in (("paused", "is paused"), ("recovering", "no running attempt"), ("cancelled", "nothing left")):
        Job.objects.filter(pk=job.pk).update(status=status)
        with pytest.raises(Conflict, match=words):
            job_resize(job=job, num_workers=3, now=NOW)


def test_an_attempt_that_loaded_what_was_saved_proves_its_snapshot():
    job, attempt = running_job()
    snapshot = saved_by(attempt, 5)
    attempt_finish(attempt=attempt, now=NOW, outcome="resized", word={})
    after = heir(job, resumed_from=snapshot.name, loaded_digest=SAVED, loaded_parts=PARTS)
    snapshot.refresh_from_db()
    assert (snapshot.proof, snapshot.status, after.status, after.resumed_from_id) == (
        "equal",
        "verified",
        "running",
        snapshot.pk,
    )
    assert "step 5, 2 micro-steps in exactly as it was saved" in Event.objects.get(kind="snapshot.proved").text


def test_an_attempt_that_loaded_something_else_is_ended_and_its_snapshot_never_used_again():
    job, attempt = running_job()
    snapshot = saved_by(attempt, 5)
    attempt_finish(attempt=attempt, now=NOW, outcome="resized", word={})
    launches = Command.objects.filter(kind="launch").count()
    after = heir(job, resumed_from=snapshot.name, loaded_digest=OTHER, loaded_parts=PARTS | {"moments": "3" * 64})
    snapshot.refresh_from_db()
    job.refresh_from_db()
    assert (snapshot.proof, snapshot.status, after.status, job.status) == (
        "different",
        "corrupt",
        "failed",
        "recovering",
    )
    assert "other content (moments). The one before is used" in Event.objects.get(kind="snapshot.differs").text
    assert Command.objects.filter(kind="launch").count() == launches + 1


def test_the_snapshot_that_the_trainer_names_counts_and_not_the_one_that_was_expected():
    job, attempt = running_job()
    older, newer = saved_by(attempt, 4), saved_by(attempt, 5)
    attempt_finish(attempt=attempt, now=NOW, outcome="resized", word={})
    after, _ = attempt_open(job=job, num_workers=3, now=NOW, resumed_from=newer)
    say_hello(after, resumed_from=older.name, loaded_digest=SAVED)
    assert after.resumed_from == older
    assert [Snapshot.objects.get(pk=row.pk).proof for row in (older, newer)] == ["equal", ""]


def test_a_later_attempt_speaks_of_an_earlier_ones_snapshot_and_makes_no_second_record():
    job, attempt = running_job()
    snapshot = saved_by(attempt, 5)
    later, _ = make_attempt(job)
    snapshot_note(
        attempt=later,
        name=snapshot.name,
        kind="gradient",
        status="corrupt",
        step=5,
        now=NOW,
        uri="file:///x",
        detail="torn",
    )
    assert [row.status for row in Snapshot.objects.all()] == ["corrupt"]
    assert Event.objects.get(kind="snapshot.corrupt").text == "Snapshot of step 5, 2 micro-steps in corrupt: torn"
