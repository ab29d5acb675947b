"""The sweep: what the broker lost, what nobody took, and what must not wait for ever."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from jobs.models import Command, Decision, Job
from jobs.services.approvals import decision_approve
from jobs.services.attempts import attempt_finish, attempt_open
from jobs.services.commands import command_claim, command_fail
from tests.factories import NOW, make_attempt, make_decision, make_job
from tests.workers.world import command_of, later, order
from workers import clock
from workers.carry import directives_carry
from workers.clock import commands_ring, everything_sweep, launches_sweep, rules_tick
from workers.execute import command_execute

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def bell(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Commands that the sweep has rung for."""
    rung: list[int] = []

    def ring(*, command_id: int, queue: str) -> bool:
        rung.append(command_id)
        return True

    monkeypatch.setattr(clock, "ring", ring)
    monkeypatch.setattr(clock, "_rung", {})
    return rung


def test_the_sweep_rings_for_what_the_broker_lost_but_not_every_time(bell: list[int]) -> None:
    command = order(make_job(), "test")
    commands_ring(now=NOW)
    commands_ring(now=later(3))
    assert bell == [command.pk]


def test_the_sweep_rings_for_a_command_whose_worker_was_killed(bell: list[int]) -> None:
    command = order(make_job(), "test")
    assert command_claim(command_id=command.pk, now=NOW) is not None
    commands_ring(now=later(10))
    assert bell == []
    commands_ring(now=later(61))
    assert bell == [command.pk]


def test_a_part_that_fails_does_not_keep_the_others_from_running(
    bell: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: object) -> None:
        raise RuntimeError("this part is broken")

    broken.__name__ = "broken"
    monkeypatch.setattr(clock, "launches_sweep", broken)
    monkeypatch.setattr(clock, "decisions_sweep", broken)
    order(make_job(), "test")
    everything_sweep(now=NOW)
    assert len(bell) == 1


def test_a_job_whose_launch_was_given_up_ends_with_the_reason() -> None:
    job = make_job(status="queued")
    launch = command_claim(command_id=command_of(job, "launch").pk, now=NOW)
    assert launch is not None
    command_fail(command=launch, now=NOW, error="the backend does not answer")
    launches_sweep(now=NOW)
    job.refresh_from_db()
    assert (job.status, job.failure_class) == ("failed", "no_capacity")
    assert "the backend does not answer" in job.failure_message


def test_a_queued_job_without_any_launch_gets_one() -> None:
    job = make_job(status="queued")
    job.commands.all().delete()
    launches_sweep(now=NOW)
    assert command_of(job, "launch").status == "issued"
    launches_sweep(now=NOW)
    assert job.commands.filter(kind="launch").count() == 1


def test_a_job_whose_attempt_is_starting_is_left_alone() -> None:
    job = make_job(status="queued")
    attempt, _ = attempt_open(job=job, num_workers=1, now=NOW)
    Command.objects.filter(job=job).update(status="done", result={"attempt": str(attempt.uuid)})
    launches_sweep(now=NOW)
    assert job.commands.filter(kind="launch").count() == 1


def approved(job: Job, kind: str, **args: Any) -> Decision:
    decision = make_decision(job, kind=kind, args=args, subject="shard:shard_000")
    return decision_approve(decision=decision, now=NOW, by_rule="test")


def test_an_order_that_an_attempt_took_to_its_grave_goes_to_the_next_one() -> None:
    job = make_job(status="queued")
    first, _ = make_attempt(job)
    approved(job, "pause_shard", shard_id="shard_000")
    assert command_execute(command_of(job, "pause_shard").pk) == "done"
    attempt_finish(attempt=first, now=NOW, outcome="preempted", word={})
    assert directives_carry(now=NOW) == 0
    heir, _ = make_attempt(job)
    assert directives_carry(now=NOW) == 1
    assert directives_carry(now=NOW) == 0
    assert [d.args for d in heir.directives.all()] == [{"shard": "shard_000"}]


@pytest.mark.parametrize(
    ("kind", "args", "action", "told"),
    [
        ("pause_shard", {"shard_id": "shard_000"}, "pause_shard", {"shard": "shard_000"}),
        (
            "resume_shard",
            {"shard_id": "shard_000", "weight": 2},
            "resume_shard",
            {"shard": "shard_000", "weight": 2.0},
        ),
        (
            "reweight_shards",
            {"weights": {"shard_000": 3, "shard_001": 0}},
            "set_weights",
            {"weights": {"shard_000": 3.0, "shard_001": 0.0}},
        ),
    ],
)
def test_orders_for_shards_become_directives(
    kind: str, args: dict[str, Any], action: str, told: dict[str, Any]
) -> None:
    job = make_job(status="queued")
    attempt, _ = make_attempt(job)
    decision = approved(job, kind, action=kind, **args)
    command = command_of(job, kind)
    assert command_execute(command.pk) == "done"
    Command.objects.filter(pk=command.pk).update(status="claimed", lease_until=NOW - dt.timedelta(hours=1))
    assert command_execute(command.pk) == "done"
    directive = attempt.directives.get()
    assert (directive.action, directive.args, directive.decision) == (action, told, decision)


@pytest.mark.parametrize(
    ("kind", "args", "why"),
    [
        ("pause_shard", {"shard_id": "nobody"}, "no shard 'nobody'"),
        ("reweight_shards", {"weights": {"nobody": 1}}, "no shard nobody"),
        ("reweight_shards", {"weights": {}}, "Nothing to reweight"),
        ("reweight_shards", {"weights": {"shard_000": -1}}, "finite number from 0"),
    ],
)
def test_an_order_that_does_not_fit_the_job_says_why(kind: str, args: dict[str, Any], why: str) -> None:
    job = make_job(status="queued")
    make_attempt(job)
    command = order(job, kind, **args)
    assert command_execute(command.pk) == "failed"
    command.refresh_from_db()
    assert why in command.error


def test_the_last_active_shard_is_not_paused() -> None:
    job = make_job(status="queued", num_shards=2)
    make_attempt(job)
    job.job_shards.filter(shard__key="shard_001").update(paused=True)
    assert command_execute(order(job, "pause_shard", shard_id="shard_000").pk) == "failed"


def test_an_order_between_two_attempts_waits_for_the_next_one() -> None:
    job = make_job(status="queued")
    command = order(job, "pause_shard", shard_id="shard_000")
    assert command_execute(command.pk) == "waiting"
    make_attempt(job)
    Command.objects.filter(pk=command.pk).update(due_at=NOW)
    assert command_execute(command.pk) == "done"


def test_a_job_whose_rules_fail_does_not_keep_the_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    jobs = [make_job(status="running") for _ in range(2)]
    Job.objects.update(current_step=100)

    def evaluate(*, job: Job, now: dt.datetime) -> None:
        seen.append(job.pk)
        raise RuntimeError("bad numbers")

    monkeypatch.setattr(clock, "job_evaluate", evaluate)
    assert rules_tick(now=NOW) == 2
    assert seen == [job.pk for job in jobs]
