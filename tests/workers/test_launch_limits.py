"""What keeps a launch from starting anything: a pause, and the team's quota."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone

from jobs.models import Attempt, Directive, Job
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_pause, job_resume
from tests.factories import NOW
from tests.services import wait_until
from tests.workers.test_launch import say_hello
from tests.workers.world import command_of, ended, launched, make_filled_job, order, run_dir, script
from workers.execute import command_execute
from workers.watch import attempts_watch

pytestmark = pytest.mark.django_db
Runs = Callable[[list[str]], None]
SAVES = script("""
import signal, time
signal.signal(signal.SIGTERM, lambda *_: leave('preempted', 81))
open(os.path.join(os.environ["COUNTERFLOW_RUN_DIR"], "ready"), "w").close()
time.sleep(60)
""")


def trains(job: Job) -> Attempt:
    """Launch it and wait until its process listens to signals."""
    attempt = launched(job)
    wait_until((run_dir(attempt) / "ready").exists, within_s=20, what="it trains")
    say_hello(attempt)
    job.refresh_from_db()
    return attempt


def test_a_paused_job_is_not_launched_until_it_goes_on(runs: Runs) -> None:
    runs(script("leave('done')"))
    job = make_filled_job()
    job_pause(job=job, now=NOW, actor=SYSTEM)
    first = command_of(job, "launch")
    assert command_execute(first.pk) == "done"
    first.refresh_from_db()
    assert first.result == {"skipped": "the job is paused"}
    assert not job.attempts.exists()
    job_resume(job=job, now=NOW, actor=SYSTEM)
    ended(launched(job))


def test_a_machine_lost_in_a_pause_is_followed_by_no_run_before_the_end_of_the_pause(runs: Runs) -> None:
    runs(SAVES)
    job = make_filled_job()
    attempt = trains(job)
    job_pause(job=job, now=timezone.now(), actor=SYSTEM)
    stop = order(job, "stop", attempt=str(attempt.uuid), outcome="preempted")  # as the cluster would
    wait_until(lambda: command_execute(stop.pk) == "done", within_s=20, what="it leaves")
    attempts_watch(now=timezone.now())
    job.refresh_from_db()
    assert (job.status, Attempt.objects.get(job=job).status) == ("paused", "preempted")
    assert not job.commands.filter(kind="launch", status="issued").exists()
    job_resume(job=job, now=timezone.now(), actor=SYSTEM)
    assert command_execute(command_of(job, "launch").pk) == "done"
    heir = job.attempts.get(fence=2)
    say_hello(heir)
    job.refresh_from_db()
    assert job.status == "running"
    assert not Directive.objects.filter(attempt=heir, action="pause").exists()
