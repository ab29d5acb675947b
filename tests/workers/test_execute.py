"""Carrying out commands: once, with patience for what passes and a clear end for what stays."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from jobs.errors import Conflict
from jobs.models import Command, Decision, Job
from jobs.services.approvals import decision_approve
from jobs.services.commands import MAX_TRIES, command_claim
from tests.factories import NOW, make_decision, make_job
from tests.workers.world import command_of, order
from workers.commands.registry import HANDLERS, NotYet, Overtaken, Passing, Permanent, Work
from workers.doorbell import EXECUTE_TASK
from workers.execute import command_execute, run_command, run_command_former_name

pytestmark = pytest.mark.django_db
Handle = Callable[[Callable[[Work], Any]], None]


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Handle:
    """`handle(function)` makes `function` the handler of commands of kind `test`."""
    return lambda function: monkeypatch.setitem(HANDLERS, "test", function)


def raises(error: Exception) -> Callable[[Work], Any]:
    def handler(work: Work) -> Any:
        raise error

    return handler


def due_again(command: Command) -> None:
    Command.objects.filter(pk=command.pk).update(due_at=NOW)


def test_a_command_delivered_three_times_is_carried_out_once(handle: Handle) -> None:
    calls: list[int] = []
    handle(lambda work: {"call": calls.append(work.command.pk)})
    command = order(make_job(), "test")
    assert [command_execute(command.pk) for _ in range(3)] == ["done", "skipped", "skipped"]
    assert calls == [command.pk]


def test_a_command_that_is_not_due_waits_for_its_time(handle: Handle) -> None:
    """Times are rows, never messages with an ETA, which a broker delivers again and again."""
    handle(lambda work: {})
    command = order(make_job(), "test")
    Command.objects.filter(pk=command.pk).update(due_at=timezone.now() + dt.timedelta(hours=3))
    assert command_execute(command.pk) == "skipped"
    due_again(command)
    assert command_execute(command.pk) == "done"


def test_a_passing_fault_is_tried_again_later_and_given_up_in_the_end(handle: Handle) -> None:
    handle(raises(Passing("the provider is busy")))
    command = order(make_job(), "test")
    results = []
    waits = []
    for _ in range(MAX_TRIES):
        due_again(command)
        results.append(command_execute(command.pk))
        command.refresh_from_db()
        waits.append((command.due_at - timezone.now()).total_seconds())
    assert results == ["retry"] * (MAX_TRIES - 1) + ["failed"]
    assert waits[:4] == sorted(waits[:4])
    assert "the provider is busy" in command.error


def test_waiting_uses_up_no_try(handle: Handle) -> None:
    handle(raises(NotYet("no attempt runs")))
    command = order(make_job(), "test")
    for _ in range(2 * MAX_TRIES):
        due_again(command)
        assert command_execute(command.pk) == "waiting"


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Permanent("no such shard"), "failed"),
        (Conflict("no such shard"), "failed"),
        (Overtaken("no such shard"), "superseded"),
    ],
)
def test_a_fault_that_stays_ends_the_command_and_its_decision_at_once(
    handle: Handle, fault: Exception, status: str
) -> None:
    job = make_job(status="running")
    decision = decision_approve(decision=make_decision(job), now=NOW, by_rule="test")
    Command.objects.filter(decision=decision).update(kind="test")
    handle(raises(fault))
    assert command_execute(command_of(job, "test").pk) == "failed"
    ended = Decision.objects.get(pk=decision.pk)
    assert (ended.status, ended.failure) == (status, "no such shard")


def test_a_crash_of_a_handler_is_stored_and_tried_again(handle: Handle) -> None:
    handle(raises(ZeroDivisionError("division by zero")))
    command = order(make_job(), "test")
    assert command_execute(command.pk) == "retry"
    command.refresh_from_db()
    assert command.error == "ZeroDivisionError: division by zero"


def test_a_kind_without_a_handler_fails_and_names_the_known_ones() -> None:
    command = order(make_job(), "sing")
    assert command_execute(command.pk) == "failed"
    command.refresh_from_db()
    assert "augment_shard" in command.error
    assert "write_report" in command.error


def test_a_worker_that_lost_its_lease_leaves_the_word_to_the_one_that_took_over(handle: Handle) -> None:
    command = order(make_job(), "test")
    Command.objects.filter(pk=command.pk).update(due_at=NOW)

    def slow(work: Work) -> dict[str, Any]:
        assert command_claim(command_id=command.pk, now=timezone.now() + dt.timedelta(hours=1)) is not None
        return {}

    handle(slow)
    assert command_execute(command.pk) == "lost"
    command.refresh_from_db()
    assert command.status == "claimed"


def test_a_message_without_its_row_is_dropped() -> None:
    run_command(4711)


def test_messages_under_the_former_task_name_are_still_carried_out(handle: Handle) -> None:
    handle(lambda work: {})
    command = order(make_job(), "test")
    run_command_former_name(command.pk)
    command.refresh_from_db()
    assert command.status == "done"


def test_the_doorbell_rings_for_a_task_that_exists() -> None:
    from workers.celery_app import app

    assert EXECUTE_TASK in app.tasks
    app.loader.import_default_modules()
    scheduled = {entry["task"] for entry in app.conf.beat_schedule.values()}
    assert scheduled <= set(app.tasks)


@pytest.mark.django_db(transaction=True)
def test_a_lease_is_renewed_while_the_work_is_long(handle: Handle, settings: Any) -> None:
    settings.COMMAND_LEASE_S = 0.6
    seen: list[bool] = []

    def long(work: Work) -> dict[str, Any]:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            time.sleep(0.1)
        seen.append(command_claim(command_id=work.command.pk, now=timezone.now()) is None)
        return {}

    handle(long)
    command = order(make_job(), "test")
    assert command_execute(command.pk) == "done"
    assert seen == [True]


def test_a_rolled_back_order_rings_no_bell(django_capture_on_commit_callbacks: Any) -> None:
    from django.db import transaction

    job: Job = make_job()
    with django_capture_on_commit_callbacks() as callbacks:
        try:
            with transaction.atomic():
                order(job, "test")
                raise RuntimeError("the request failed")
        except RuntimeError:
            pass
    assert not callbacks
    assert not Command.objects.filter(kind="test").exists()
