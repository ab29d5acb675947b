"""What keeps a launch from starting anything: a pause, the team's quota, and the budget."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Attempt, Command, Directive, Instance, Job, Team
from jobs.services.events import SYSTEM
from jobs.services.job_changes import job_change
from jobs.services.jobs import job_pause, job_resume
from jobs.services.spending import budgets_sweep
from tests.factories import NOW, make_job
from tests.services import wait_until
from tests.workers.test_launch import say_hello
from tests.workers.world import command_of, ended, launched, make_filled_job, order, run_dir, script
from trainer_client.backends import BackendError
from workers.commands.launch import _give_up
from workers.commands.registry import Work
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


def test_a_launch_waits_with_the_reason_while_the_quota_is_held_from_the_moment_of_the_order(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(SAVES)
    monkeypatch.setattr("jobs.selectors.quotas.gpus_of", lambda job, num_workers: 2)
    monkeypatch.setattr("workers.commands.launch.gpus_of", lambda job, num_workers: 2)
    first = make_filled_job()
    Team.objects.filter(pk=first.team_id).update(max_gpus=3)
    second = make_job(first.team, status="queued", dataset=first.dataset, num_workers=1)
    with monkeypatch.context() as broken:  # nothing has been started yet, but it is on its way
        broken.setattr("workers.commands.launch._start", refuse)
        assert command_execute(command_of(first, "launch").pk) == "retry"
    waits = command_of(second, "launch")
    assert command_execute(waits.pk) == "waiting"
    waits.refresh_from_db()
    assert (waits.error, second.attempts.count()) == ("team quota: 2 of 3 GPUs are held", 0)
    held = Instance.objects.get(team=first.team)
    assert (held.job, held.status, held.num_gpus) == (first, "requested", 2)
    Command.objects.filter(kind="launch").update(due_at=NOW)
    attempt = trains(first)
    assert Instance.objects.get(team=first.team).status == "running"
    stop = order(first, "stop", attempt=str(attempt.uuid))
    wait_until(lambda: command_execute(stop.pk) == "done", within_s=20, what="it leaves")
    Job.objects.filter(pk=first.pk).update(status="cancelled")
    assert command_execute(waits.pk) == "done"


def test_a_launch_that_is_given_up_frees_what_it_had_taken_of_the_quota(
    runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(["/no/such/program"])
    monkeypatch.setattr("jobs.selectors.quotas.gpus_of", lambda job, num_workers: 2)
    monkeypatch.setattr("workers.commands.launch.gpus_of", lambda job, num_workers: 2)
    job = make_filled_job()
    Team.objects.filter(pk=job.team_id).update(max_gpus=3)
    monkeypatch.setattr("workers.commands.launch._lay_out", gone)
    assert command_execute(command_of(job, "launch").pk) == "failed"
    assert Instance.objects.get(job=job).status == "terminated"


def test_a_job_at_its_budget_saves_and_leaves_and_goes_on_with_more_of_it(runs: Runs, settings: Any) -> None:
    settings.LOCAL_USD_PER_HOUR = 3600.0  # a dollar a second
    runs(SAVES)
    job = make_filled_job(budget_usd="1000.00")
    attempt = trains(job)
    assert budgets_sweep(now=timezone.now()) == 0
    begun = Instance.objects.get(job=job).started_at
    assert begun is not None
    assert budgets_sweep(now=begun + dt.timedelta(seconds=940)) == 1
    stop = command_of(job, "stop")
    Command.objects.filter(pk=stop.pk).update(due_at=begun)
    wait_until(lambda: command_execute(stop.pk) == "done", within_s=20, what="it leaves")
    attempt.refresh_from_db()
    job.refresh_from_db()
    assert (job.status, attempt.status) == ("paused", "preempted")
    assert Instance.objects.get(job=job).status == "terminated"
    assert not job.commands.filter(kind="launch", status="issued").exists()
    job_change(job=job, changes={"budget_usd": Decimal(2000)}, now=timezone.now(), actor=SYSTEM)
    job.refresh_from_db()
    job_resume(job=job, now=timezone.now(), actor=SYSTEM)
    assert command_execute(command_of(job, "launch").pk) == "done"
    say_hello(job.attempts.get(fence=2))
    job.refresh_from_db()
    assert job.status == "running"


def refuse(*_: Any) -> None:
    raise BackendError("not now", permanent=False)


def gone(work: Work, attempt: Attempt) -> None:
    _give_up(work, attempt, "A file is gone.")


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
