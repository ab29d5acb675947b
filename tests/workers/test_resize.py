"""`resize`: order to the trainer, next attempt at the new size, old machines released with the proof and not before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Attempt, Command, Directive, Event, Instance, Job
from jobs.services.attempts import attempt_start
from jobs.services.directives import directive_acknowledge
from jobs.services.resizes import job_resize, resize_done
from jobs.services.snapshots import snapshot_note
from tests.factories import NOW
from tests.workers.world import command_of, ended, launched, make_filled_job, order, script
from workers.backend_access import backend_named
from workers.execute import command_execute
from workers.launch_specs import launch_command
from workers.watch import attempts_watch

pytestmark = pytest.mark.django_db
Runs = Callable[[list[str]], None]
SAVED = "sha256:" + "a" * 64
LEAVES = script("leave('resized', 80)")


def hello(attempt: Attempt, **fields: Any) -> None:
    attempt.refresh_from_db()
    capable = {"world_size": attempt.world_size, "start_step": 0, "capabilities": ["resize"]}
    attempt_start(attempt=attempt, now=timezone.now(), hello=capable | fields)


def begun(num_workers: int = 2) -> tuple[Job, Attempt, Command]:
    """A job whose trainer has said hello and has (as it will turn out) left already; a resize to `num_workers` is ordered."""
    job = make_filled_job()
    attempt = launched(job)
    hello(attempt)
    job.refresh_from_db()
    given = job_resize(job=job, num_workers=num_workers, now=NOW)
    assert carried_out(given) == "waiting"
    return job, attempt, given


def carried_out(order: Command) -> str:
    Command.objects.filter(pk=order.pk).update(due_at=NOW)
    return command_execute(order.pk)


def left(attempt: Attempt) -> None:
    ended(attempt)
    attempts_watch(now=NOW)


def next_attempt(job: Job) -> Attempt:
    launch = command_of(job, "launch")
    Command.objects.filter(pk=launch.pk).update(due_at=NOW)
    assert command_execute(launch.pk) == "done"
    return job.attempts.get(uuid=Command.objects.get(pk=launch.pk).result["attempt"])


def save(attempt: Attempt, step: int) -> str:
    name = f"step-{step:06d}-abcd"
    given = {
        "attempt": attempt,
        "kind": "gradient",
        "status": "verified",
        "uri": "file:///x",
        "digest": SAVED,
        "now": NOW,
    }
    snapshot_note(name=name, step=step, **given)
    return name


def test_the_old_machines_are_released_when_the_new_workers_hold_what_was_saved(runs: Runs) -> None:
    runs(LEAVES)
    job, attempt, given = begun()
    assert Directive.objects.get(action="resize").args == {"num_workers": 2}
    name = save(attempt, 5)
    left(attempt)
    attempt.refresh_from_db()
    assert (attempt.status, attempt.exit_code) == ("resized", 80)

    heir = next_attempt(job)
    assert (heir.world_size, heir.resumed_from.name) == (2, name)  # type: ignore[union-attr]
    attempts_watch(now=NOW)
    assert Instance.objects.get(attempt=attempt).status == "terminating"
    assert carried_out(given) == "waiting"

    hello(heir, resumed_from=name, loaded_digest=SAVED)
    assert carried_out(given) == "done"
    given.refresh_from_db()
    assert (given.result["attempt"], given.result["proof"]) == (str(heir.uuid), "equal")
    assert Instance.objects.get(attempt=attempt).status == "terminated"
    assert "it loaded exactly what was saved" in Event.objects.get(kind="job.resized").text
    resize_done(command=given, heir=heir, proof="equal", took_s=1.0, now=timezone.now())  # as after a kill in between
    assert Event.objects.filter(kind="job.resized").count() == 1


def test_a_failed_proof_keeps_the_old_machines_and_the_next_start_leaves_that_snapshot_out(runs: Runs) -> None:
    runs(LEAVES)
    job, attempt, given = begun()
    older, newer = save(attempt, 4), save(attempt, 5)
    left(attempt)
    heir = next_attempt(job)
    hello(heir, resumed_from=newer, loaded_digest="sha256:" + "b" * 64)
    ended(heir)
    assert carried_out(given) == "waiting"
    attempts_watch(now=NOW)
    assert Instance.objects.get(attempt=attempt).status == "terminating"

    third = next_attempt(job)
    command = launch_command(third)
    assert command[command.index("--refuse_snapshots") + 1] == newer
    assert third.resumed_from.name == older  # type: ignore[union-attr]
    hello(third, resumed_from=older, loaded_digest=SAVED)
    attempts_watch(now=NOW)
    assert Instance.objects.get(attempt=attempt).status == "terminated"
    assert carried_out(given) == "done"


def test_a_refused_resize_leaves_the_job_as_it_was(runs: Runs) -> None:
    runs(script("import time; time.sleep(60)"))
    job, attempt, given = begun()
    assert Job.objects.get(pk=job.pk).num_workers == 2
    directive = Directive.objects.get(action="resize")
    directive_acknowledge(
        attempt=attempt, directive_uuid=str(directive.uuid), outcome="refused", step=None, detail="not now", now=NOW
    )
    assert carried_out(given) == "failed"
    given.refresh_from_db()
    assert "not now" in given.error
    assert Job.objects.get(pk=job.pk).num_workers == 1


def test_workers_killed_before_they_leave_are_followed_by_the_new_size_all_the_same(runs: Runs) -> None:
    runs(script("import os, time; print('up', flush=True); time.sleep(60)"))
    job, attempt, given = begun()
    backend_named("local").stop(attempt.handle, 0.0)
    left(attempt)
    attempt.refresh_from_db()
    assert attempt.status == "failed"
    runs(LEAVES)
    heir = next_attempt(job)
    assert heir.world_size == 2
    hello(heir)
    assert carried_out(given) == "done"
    given.refresh_from_db()
    assert given.result["proof"] == "none"


def test_a_resize_of_a_job_that_ends_first_fails_with_that_reason(runs: Runs) -> None:
    runs(script("leave('done')"))
    _, attempt, given = begun()
    left(attempt)
    assert carried_out(given) == "failed"
    given.refresh_from_db()
    assert given.error == "The job is succeeded."
    assert Instance.objects.get(attempt=attempt).status == "terminated"


def test_two_orders_are_carried_out_one_after_the_other(runs: Runs) -> None:
    runs(LEAVES)
    job, attempt, first = begun()
    second = order(job, "resize", num_workers=3)
    assert carried_out(second) == "waiting"
    assert Directive.objects.filter(action="resize").count() == 1
    left(attempt)
    heir = next_attempt(job)
    hello(heir)
    assert carried_out(first) == "done"
    assert carried_out(second) == "waiting"
    assert Directive.objects.get(attempt=heir, action="resize").args == {"num_workers": 3}


def test_an_order_for_the_size_that_the_job_has_stops_no_training(runs: Runs) -> None:
    runs(LEAVES)
    job = make_filled_job()
    hello(launched(job))
    same = order(job, "resize", num_workers=1)
    assert carried_out(same) == "failed"
    assert not Directive.objects.exists()
