"""Attempts and directives: fencing, last words, and what they do to the job."""

import datetime as dt

import pytest

from jobs.errors import Superseded
from jobs.models import Attempt, Command, Directive, Event, JobShard
from jobs.services.attempts import CIRCLES, attempt_finish, attempt_must_write, attempt_start
from jobs.services.directives import directive_acknowledge, directive_issue, directives_deliver
from tests.factories import NOW, make_attempt, make_decision, make_job

pytestmark = pytest.mark.django_db


def test_a_newer_attempt_shuts_the_older_out():
    job = make_job(status="queued")
    old, _ = make_attempt(job)
    attempt_must_write(attempt=old)
    make_attempt(job)
    with pytest.raises(Superseded):
        attempt_must_write(attempt=old)


def test_the_first_hello_makes_the_job_run():
    job = make_job(status="queued")
    make_attempt(job)
    assert (job.status, job.started_at) == ("running", NOW)


def test_a_second_rank_that_says_hello_in_the_same_moment_is_taken_as_a_repeat():
    job = make_job(status="queued", num_workers=2)
    first, _ = make_attempt(job, running=False)
    second = Attempt.objects.get(pk=first.pk)  # read before the other was written
    for rank, planned in ((first, 40), (second, None)):
        attempt = attempt_start(
            attempt=rank, now=NOW, hello={"world_size": 2, "start_step": 0, "planned_steps": planned}
        )
        assert attempt.status == "running"
    first.refresh_from_db()
    assert (first.planned_steps, Event.objects.filter(kind="attempt.running").count()) == (40, 1)


@pytest.mark.parametrize(
    ("outcome", "word", "job_status"),
    [
        ("done", {}, "succeeded"),
        ("stopped", {}, "cancelled"),
        ("failed", {"failure_class": "user_error", "message": "typo"}, "failed"),
        ("failed", {"failure_class": "diverged"}, "failed"),
        ("failed", {}, "recovering"),
        ("preempted", {}, "recovering"),
    ],
)
def test_an_attempts_last_word_settles_the_job(outcome, word, job_status):
    job = make_job(status="queued")
    attempt, _ = make_attempt(job)
    attempt_finish(attempt=attempt, now=NOW, outcome=outcome, word=word)
    attempt_finish(attempt=attempt, now=NOW, outcome="failed", word={})  # a repeat changes nothing
    job.refresh_from_db()
    assert job.status == job_status
    assert Command.objects.filter(kind="launch").count() == (2 if job_status == "recovering" else 1)


def test_a_job_that_keeps_failing_is_given_up():
    job = make_job(status="queued")
    for _ in range(5):
        attempt, _ = make_attempt(job)
        attempt_finish(attempt=attempt, now=NOW, outcome="failed", word={})
    job.refresh_from_db()
    assert (job.status, job.failure_class) == ("failed", "controller")


@pytest.mark.parametrize(("steps", "status"), [(0, "failed"), (1, "recovering")])
def test_a_job_whose_attempts_leave_at_once_for_nothing_is_given_up(steps, status):
    job = make_job(status="queued")
    for number in range(CIRCLES):
        attempt, _ = make_attempt(job)
        if number == 3 and steps:
            Attempt.objects.filter(pk=attempt.pk).update(last_step=attempt.start_step)
        attempt_finish(attempt=attempt, now=NOW + dt.timedelta(seconds=5), outcome="resized", word={"exit_code": 80})
        job.refresh_from_db()
    assert job.status == status


def test_a_directive_is_repeated_until_acknowledged():
    job = make_job(status="queued")
    attempt, _ = make_attempt(job)
    directive = directive_issue(attempt=attempt, action="pause_shard", args={"shard": "shard_000"}, now=NOW)
    assert [d.pk for d in directives_deliver(attempt=attempt, now=NOW)] == [directive.pk]
    assert [d.pk for d in directives_deliver(attempt=attempt, now=NOW)] == [directive.pk]
    for _ in range(2):
        directive_acknowledge(
            attempt=attempt, directive_uuid=str(directive.uuid), outcome="applied", step=42, detail="", now=NOW
        )
    assert directives_deliver(attempt=attempt, now=NOW) == []
    assert JobShard.objects.get(job=job, shard__key="shard_000").paused


def test_an_acknowledged_directive_puts_its_decision_in_force():
    job = make_job(status="queued")
    attempt, _ = make_attempt(job)
    decision = make_decision(job)
    type(decision).objects.filter(pk=decision.pk).update(status="executing")
    directive = directive_issue(
        attempt=attempt, action="set_weights", args={"weights": {"shard_001": 2.0}}, decision=decision, now=NOW
    )
    directive_acknowledge(
        attempt=attempt, directive_uuid=str(directive.uuid), outcome="applied", step=7, detail="", now=NOW
    )
    decision.refresh_from_db()
    assert (decision.status, decision.applied_step) == ("succeeded", 7)
    assert JobShard.objects.get(job=job, shard__key="shard_001").weight == 2.0


def test_a_refusal_fails_its_decision_with_the_trainers_words():
    job = make_job(status="queued")
    attempt, _ = make_attempt(job)
    decision = make_decision(job)
    type(decision).objects.filter(pk=decision.pk).update(status="executing")
    directive = directive_issue(attempt=attempt, action="resize", args={"num_workers": 9}, decision=decision, now=NOW)
    directive_acknowledge(
        attempt=attempt,
        directive_uuid=str(directive.uuid),
        outcome="refused",
        step=None,
        detail="no such size",
        now=NOW,
    )
    decision.refresh_from_db()
    assert decision.status == "failed"
    assert "no such size" in decision.failure


def test_an_ended_attempt_expires_what_it_never_acknowledged():
    job = make_job(status="queued")
    attempt, _ = make_attempt(job)
    directive_issue(attempt=attempt, action="snapshot", args={}, now=NOW)
    attempt_finish(attempt=attempt, now=NOW, outcome="done", word={})
    assert Directive.objects.get().status == "expired"


@pytest.mark.parametrize(
    ("last_step", "start_step", "again"),
    [(49, 40, 10), (40, 40, 1), (39, 40, 0), (-1, 40, 0)],
    ids=["killed", "killed-in-the-second-step", "left-with-a-snapshot", "left-in-its-first-step"],
)
def test_an_attempt_says_how_many_steps_it_does_again(last_step: int, start_step: int, again: int) -> None:
    job = make_job(status="queued")
    first, _ = make_attempt(job)
    start = 0 if last_step >= 0 else 40
    Attempt.objects.filter(pk=first.pk).update(start_step=start, last_step=last_step)
    attempt_finish(attempt=first, now=NOW, outcome="preempted", word={})
    second, _ = make_attempt(job, running=False)
    hello = {"world_size": 2, "start_step": start_step, "capabilities": ["resize"]}
    attempt_start(attempt=second, now=NOW, hello=hello)
    second.refresh_from_db()
    assert second.steps_again == again
    event = Event.objects.get(job=job, kind="attempt.resumed")
    assert event.data == {"steps_again": again}
    assert event.text.endswith(f"{again} steps are done again." if again > 1 else "step is done again.")


def test_of_the_first_attempt_and_of_a_trainer_that_does_not_say_where_it_begins_nothing_is_known() -> None:
    job = make_job(status="queued")
    first, _ = make_attempt(job)
    Attempt.objects.filter(pk=first.pk).update(last_step=30)
    attempt_finish(attempt=first, now=NOW, outcome="failed", word={})
    second, _ = make_attempt(job)  # its hello names no capabilities
    assert [first.steps_again, second.steps_again] == [None, None]
    assert not Event.objects.filter(job=job, kind="attempt.resumed").exists()
