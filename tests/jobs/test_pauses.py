"""A pause holds until somebody ends it, whatever becomes of the job's attempts."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from jobs.errors import Conflict
from jobs.models import Attempt, Command, Directive, Event, Job
from jobs.selectors.jobs import job_lines
from jobs.services.attempts import attempt_finish, attempt_open, attempt_start
from jobs.services.directives import directive_acknowledge
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_pause, job_resume
from jobs.services.pauses import job_hold, pauses_enforce
from tests.factories import NOW, make_attempt, make_job

pytestmark = pytest.mark.django_db


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def running() -> tuple[Job, Attempt]:
    job = make_job(status="queued")
    attempt, _ = make_attempt(job)
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["pause", "resume", "stop"])
    Command.objects.filter(job=job).update(status="done")
    return job, attempt


def told(job: Job) -> tuple[str, str]:
    """What of a paused job still runs."""
    line = job_lines(jobs=[Job.objects.get(pk=job.pk)], now=NOW)[0]
    return line.waits_on, line.waits_for


def orders(attempt: Attempt) -> list[str]:
    return list(Directive.objects.filter(attempt=attempt).order_by("id").values_list("action", flat=True))


def launches(job: Job) -> int:
    return Command.objects.filter(job=job, kind="launch", status="issued").count()


@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        ("preempted", {}),
        ("resized", {"exit_code": 80}),
        ("failed", {"failure_class": "lost_worker", "message": "Lost while running."}),
    ],
)
def test_a_pause_outlives_its_attempt_and_nothing_is_started_until_it_is_lifted(
    outcome: str, word: dict[str, Any]
) -> None:
    job, attempt = running()
    job_pause(job=job, now=later(1), actor=SYSTEM)
    attempt_finish(attempt=attempt, now=later(60), outcome=outcome, word=word)
    job.refresh_from_db()
    assert (job.status, launches(job)) == ("paused", 0)
    assert "starts when it is let go on" in Event.objects.get(job=job, kind="job.left").text
    job_resume(job=job, now=later(70), actor=SYSTEM)
    assert (job.status, launches(job)) == ("recovering", 1)


def test_an_attempt_that_was_on_its_way_when_the_pause_came_holds_as_soon_as_it_has_started() -> None:
    job, attempt = running()
    attempt_finish(attempt=attempt, now=later(60), outcome="preempted", word={})
    job.refresh_from_db()
    heir, _ = attempt_open(job=job, num_workers=1, now=later(70))
    Job.objects.filter(pk=job.pk).update(status="paused")  # by another process
    attempt_start(attempt=heir, now=later(80), hello={"world_size": 1, "start_step": 50, "capabilities": ["pause"]})
    job.refresh_from_db()
    assert (job.status, orders(heir)) == ("paused", ["pause"])
    job_resume(job=job, now=later(90), actor=SYSTEM)
    assert (job.status, orders(heir)) == ("running", ["pause", "resume"])


def test_a_pause_is_on_its_way_until_the_trainer_holds() -> None:
    job, attempt = running()
    job_pause(job=job, now=later(1), actor=SYSTEM)
    assert told(job) == ("pausing", "its trainer holds at its next control point")
    pause = attempt.directives.get(action="pause")
    directive_acknowledge(
        attempt=attempt, directive_uuid=str(pause.uuid), outcome="applied", step=3, detail="", now=later(2)
    )
    assert (told(job), pauses_enforce(now=later(900))) == (("", ""), 0)


def test_a_command_that_follows_no_orders_is_stopped_by_a_pause_and_says_so_until_it_has_gone() -> None:
    job = make_job(status="queued")
    attempt, _ = make_attempt(job)
    job_pause(job=job, now=later(1), actor=SYSTEM)
    stop = Command.objects.get(job=job, kind="stop")
    words = (
        "its command follows no order to hold and is stopped: SIGTERM, 30 s for what it saves by itself, then SIGKILL"
    )
    assert (stop.args["outcome"], orders(attempt)) == ("preempted", [])
    assert told(job) == ("stopping", f"The job was paused; {words}.")
    assert Event.objects.get(job=job, kind="job.paused").text == f"{job.name} paused: {words}."
    Command.objects.filter(pk=stop.pk).update(status="done")
    attempt_finish(attempt=attempt, now=later(20), outcome="preempted", word={})
    assert (told(job), launches(job)) == (("", ""), 1), "its first launch, that nobody has carried out in this test"
    job.refresh_from_db()
    job_resume(job=job, now=later(30), actor=SYSTEM)
    assert job.status == "recovering"


def test_a_command_that_starts_for_a_paused_job_is_stopped_with_its_first_word_or_after_a_minute() -> None:
    speaks, silent, trainer = (make_job(status="queued") for _ in range(3))
    attempts = [make_attempt(job, running=False)[0] for job in (speaks, silent, trainer)]
    Attempt.objects.update(handle={"pid": 1})
    for job in (speaks, silent):
        Job.objects.filter(pk=job.pk).update(config={"run": "sleep 600"})
    for job in (speaks, silent, trainer):
        job_pause(job=job, now=later(1), actor=SYSTEM)
    attempt_start(
        attempt=Attempt.objects.get(pk=attempts[0].pk), now=later(2), hello={"world_size": 2, "start_step": 0}
    )
    assert told(speaks)[0] == "stopping"
    assert pauses_enforce(now=later(30)) == 1
    assert told(silent)[0] == "pausing"
    assert pauses_enforce(now=later(90)) == 2
    assert [told(job)[0] for job in (speaks, silent, trainer)] == ["stopping", "stopping", "pausing"]


def test_a_job_that_waits_can_be_paused_and_waits_again_afterwards() -> None:
    job = make_job(status="queued")
    job_pause(job=job, now=later(1), actor=SYSTEM)
    with pytest.raises(Conflict):
        job_pause(job=job, now=later(2), actor=SYSTEM)
    job_resume(job=job, now=later(3), actor=SYSTEM)
    assert (job.status, launches(job)) == ("queued", 1), "its first order still waits"
    Command.objects.filter(job=job).update(status="done")  # carried out while it was paused: nothing was started
    job_pause(job=job, now=later(4), actor=SYSTEM)
    job_resume(job=job, now=later(5), actor=SYSTEM)
    assert launches(job) == 1


def test_a_trainer_that_does_its_last_step_before_it_hears_of_the_pause_has_succeeded() -> None:
    job, attempt = running()
    job_pause(job=job, now=later(1), actor=SYSTEM)
    attempt_finish(attempt=attempt, now=later(2), outcome="done", word={})
    job.refresh_from_db()
    assert job.status == "succeeded"


def test_a_hold_has_the_attempt_save_and_leave_once_and_keeps_its_reason_until_the_job_goes_on() -> None:
    job, attempt = running()
    for seconds in (1, 4):
        job_hold(job=job, why="budget: $4.90 of $5.00 are spent", now=later(seconds))
    stop = Command.objects.get(job=job, kind="stop")
    assert stop.args == {
        "attempt": str(attempt.uuid),
        "reason": "budget: $4.90 of $5.00 are spent",
        "outcome": "preempted",
    }
    attempt_finish(attempt=attempt, now=later(30), outcome="preempted", word={})
    job.refresh_from_db()
    assert (job.status, job.held_for, launches(job)) == ("paused", "budget: $4.90 of $5.00 are spent", 0)
    job_resume(job=job, now=later(90), actor=SYSTEM)
    assert (job.status, job.held_for) == ("recovering", "")


def test_a_stop_that_failed_is_ordered_again_after_a_minute() -> None:
    job, _ = running()
    job_hold(job=job, why="budget", now=later(0))
    Command.objects.filter(job=job, kind="stop").update(status="failed", status_at=later(10))
    job_hold(job=job, why="budget", now=later(20))
    assert Command.objects.filter(job=job, kind="stop").count() == 1
    job_hold(job=job, why="budget", now=later(71))
    assert Command.objects.filter(job=job, kind="stop", status="issued").count() == 1
