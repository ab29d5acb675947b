"""The watch over real processes: what ended while nobody looked, what was killed, what should not run any more."""

from __future__ import annotations

import datetime as dt
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jobs.models import Attempt, Instance, Job
from jobs.services.attempts import attempt_open, attempt_start
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel
from tests.factories import NOW
from tests.services import wait_until
from tests.workers.world import command_of, ended, later, launched, make_filled_job, script
from workers.backend_access import backend_named
from workers.commands import stop as stop_module
from workers.execute import command_execute
from workers.watch import attempts_watch

pytestmark = pytest.mark.django_db
Runs = Callable[[list[str]], None]
SLEEP = "import time; time.sleep(60)"
STUBBORN = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('stubborn', flush=True)\n{SLEEP}"


def say_hello(attempt: Attempt) -> None:
    attempt_start(attempt=attempt, now=NOW, hello={"world_size": attempt.world_size, "start_step": 0})


def rank_pid(attempt: Attempt, rank: int = 0) -> int:
    backend = backend_named("local")

    def pid() -> int | None:
        workers = backend.poll(attempt.handle).workers
        return workers[rank].pid if len(workers) > rank and workers[rank].alive else None

    return int(wait_until(pid, within_s=20, what=f"rank {rank} lives") or 0)


def stubborn(attempt: Attempt) -> None:
    """Wait until the rank no longer heeds SIGTERM."""
    log = Path(attempt.run_dir) / "logs" / "rank-0.log"
    wait_until(lambda: log.exists() and "stubborn" in log.read_text(), within_s=20, what="the rank ignores SIGTERM")


def test_a_run_that_ended_while_the_server_was_away_has_succeeded_and_is_not_started_again(runs: Runs) -> None:
    runs(script("leave('done')"))
    job = make_filled_job()
    attempt = launched(job)
    say_hello(attempt)
    ended(attempt)
    for hours in (5, 6):
        attempts_watch(now=NOW + dt.timedelta(hours=hours))
    job.refresh_from_db()
    assert job.status == "succeeded"
    assert job.commands.filter(kind="launch").count() == 1
    assert job.attempts.count() == 1


def test_a_killed_rank_makes_the_job_recover_with_another_launch(runs: Runs) -> None:
    runs(script(SLEEP))
    job = make_filled_job()
    attempt = launched(job)
    say_hello(attempt)
    os.kill(rank_pid(attempt), signal.SIGKILL)
    ended(attempt)
    attempts_watch(now=NOW)
    job.refresh_from_db()
    assert job.status == "recovering"
    attempt.refresh_from_db()
    assert attempt.status == "failed"
    assert "signal 9" in attempt.detail
    assert "Last heard (UTC): rank 0 never" in attempt.detail
    assert command_of(job, "launch").queue == "urgent"
    assert Instance.objects.get(attempt=attempt).status == "terminated"


def test_a_rank_with_an_error_of_the_users_ends_the_job_without_another_launch(runs: Runs) -> None:
    runs(script("raise NameError(\"name 'trainer' is not defined\")"))
    job = make_filled_job()
    ended(launched(job))
    attempts_watch(now=NOW)
    job.refresh_from_db()
    assert (job.status, job.failure_class) == ("failed", "user_error")
    assert "NameError" in job.failure_message
    assert job.commands.filter(kind="launch").count() == 1


def test_a_job_cancelled_while_the_scheduler_was_down_is_stopped_when_it_is_back(runs: Runs) -> None:
    runs(script(SLEEP))
    job = make_filled_job()
    attempt = launched(job)
    say_hello(attempt)
    job.refresh_from_db()
    job_cancel(job=job, now=NOW, actor=SYSTEM)
    job.commands.filter(kind="stop").delete()  # as if the order had been lost with everything else
    assert attempts_watch(now=NOW) == {str(attempt.uuid): "stopping"}
    stop = command_of(job, "stop")
    assert stop.queue == "urgent"
    assert command_execute(stop.pk) == "done"
    attempt.refresh_from_db()
    assert attempt.status not in ("starting", "running")
    assert Instance.objects.get(attempt=attempt).status == "terminated"
    assert Job.objects.get(pk=job.pk).status == "cancelled"


def test_a_superseded_attempt_is_stopped_and_leaves_the_job_alone(runs: Runs) -> None:
    runs(script(SLEEP))
    job = make_filled_job()
    attempt = launched(job)
    say_hello(attempt)
    newer, _ = attempt_open(job=job, num_workers=1, now=NOW)
    say_hello(newer)
    assert attempts_watch(now=NOW) == {str(attempt.uuid): "stopping"}
    assert command_execute(command_of(job, "stop").pk) == "done"
    job.refresh_from_db()
    assert job.status == "running"
    assert job.commands.filter(kind="launch").count() == 1


def test_a_living_run_without_a_sign_of_life_is_stopped_and_starts_again(runs: Runs) -> None:
    runs(script(SLEEP))
    job = make_filled_job()
    attempt = launched(job)
    say_hello(attempt)
    rank_pid(attempt)
    assert attempts_watch(now=later(60)) == {str(attempt.uuid): "running"}
    assert attempts_watch(now=later(3600)) == {str(attempt.uuid): "stopping"}
    assert command_execute(command_of(job, "stop").pk) == "done"
    job.refresh_from_db()
    assert job.status == "recovering"


def test_one_run_that_cannot_be_looked_at_does_not_hide_the_others(runs: Runs) -> None:
    runs(script("leave('done')"))
    broken = make_filled_job()
    attempt, _ = attempt_open(job=broken, num_workers=1, now=NOW)
    Attempt.objects.filter(pk=attempt.pk).update(handle={"backend": "elsewhere"})
    Job.objects.filter(pk=broken.pk).update(backend="elsewhere")
    job = make_filled_job()
    good = launched(job)
    ended(good)
    assert attempts_watch(now=NOW) == {str(attempt.uuid): "unknown", str(good.uuid): "over"}


def test_a_stop_that_a_run_ignores_ends_in_sigkill(runs: Runs) -> None:
    runs(script(STUBBORN))
    job = make_filled_job()
    attempt = launched(job)
    say_hello(attempt)
    stubborn(attempt)
    job.refresh_from_db()
    job_cancel(job=job, now=NOW, actor=SYSTEM)
    stop = command_of(job, "stop")
    type(stop).objects.filter(pk=stop.pk).update(args={**stop.args, "grace_s": 0.3})
    assert command_execute(stop.pk) == "done"
    assert not backend_named("local").list("")


def test_a_slow_end_does_not_keep_the_worker_from_what_is_urgent(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    runs(script(STUBBORN))
    monkeypatch.setattr(stop_module, "LOOK_S", 0.2)
    job = make_filled_job()
    attempt = launched(job)
    say_hello(attempt)
    stubborn(attempt)
    job.refresh_from_db()
    job_cancel(job=job, now=NOW, actor=SYSTEM)
    stop = command_of(job, "stop")
    type(stop).objects.filter(pk=stop.pk).update(args={**stop.args, "grace_s": 1.5})
    assert command_execute(stop.pk) == "waiting"
    assert Instance.objects.get(attempt=attempt).status == "terminating"
    ended(attempt)
    type(stop).objects.filter(pk=stop.pk).update(due_at=NOW)
    assert command_execute(stop.pk) == "done"
    assert Instance.objects.get(attempt=attempt).status == "terminated"
