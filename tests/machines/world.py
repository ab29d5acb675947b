"""What the tests of machines do over and over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.utils import timezone

from jobs.models import Attempt, Command, Instance, Job
from jobs.services.attempts import attempt_finish, attempt_start
from jobs.services.commands import command_issue, commands_due
from tests.services import wait_until
from tests.workers.world import make_filled_job
from workers.execute import command_execute
from workers.machines import machines_watch, market_look
from workers.watch import attempts_watch

FILE = {"resources": {"spot_policy": "prefer", "nodes": {"min": 1, "max": 3}}}


def planned_job() -> Job:
    """A queued job of up to three machines, and a market that was looked at."""
    market_look(now=timezone.now())
    return make_filled_job(now=timezone.now(), num_workers=2, config=FILE)


def order(job: Job, kind: str, spot: int, on_demand: int = 0) -> Command:
    key = f"test:{kind}:{Command.objects.count()}"
    return command_issue(
        job=job, kind=kind, key=key, args={"spot": spot, "on_demand": on_demand}, now=timezone.now(), queue="urgent"
    )


def turn() -> None:
    """What the clock and the workers do, once."""
    for command in commands_due(now=timezone.now()):
        command_execute(command.pk)
    attempts_watch(now=timezone.now())
    machines_watch(now=timezone.now())


def until(condition: Callable[[], Any], what: str, within_s: float = 100) -> Any:
    def look() -> Any:
        turn()
        return condition()

    return wait_until(look, within_s=within_s, what=what, every_s=0.2)


def machines(job: Job, *statuses: str) -> list[Instance]:
    rows = Instance.objects.filter(job=job).order_by("id")
    return list(rows.filter(status__in=statuses) if statuses else rows)


def live(job: Job) -> Attempt | None:
    rows = Attempt.objects.filter(job_id=job.pk, status__in=("starting", "running")).exclude(handle={})
    return rows.order_by("-fence").first()


def trains(job: Job, world_size: int) -> Attempt:
    """Wait for an attempt of that size to be started, and speak its first word."""
    attempt: Attempt = until(
        lambda: (a := live(job)) is not None and a.world_size == world_size and a, f"{world_size} workers"
    )
    hello = {"world_size": world_size, "start_step": 0, "planned_steps": 600, "capabilities": ["resize"]}
    attempt_start(attempt=attempt, now=timezone.now(), hello=hello)
    attempt.refresh_from_db()
    return attempt


def leaves(attempt: Attempt) -> None:
    """The trainer follows the order to leave."""
    until(lambda: attempt.directives.filter(action="resize").exists(), "the order to leave")
    attempt_finish(attempt=attempt, now=timezone.now(), outcome="resized", word={"exit_code": 80})
