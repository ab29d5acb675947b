"""A real training is resized under the server's commands, from two processes to one, with kill -9 on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Attempt, Evaluation, Event, Instance, Job, Snapshot
from jobs.planning import job_evaluate
from jobs.services.commands import commands_due
from jobs.services.resizes import job_resize
from tests.contract.conftest import Server
from tests.contract.conftest import server as server
from tests.services import wait_until
from tests.workers.world import make_filled_job
from workers.backend_access import backend_named
from workers.execute import command_execute
from workers.watch import attempts_watch

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
TRAINING = {
    "global_batch": 6,
    "micro_batch": 1,
    "seq_len": 32,
    "snapshot_every": 100,
    "export_every": 100_000,
    "eval_every": 5,
    "eval_fraction": 0.2,
}


def turn(*, but: str = "") -> None:
    """What the clock and the workers do, once; commands of the kind `but` find nobody."""
    for command in commands_due(now=timezone.now()):
        if command.kind != but:
            command_execute(command.pk)
    attempts_watch(now=timezone.now())


def until(condition: Callable[[], Any], what: str, *, but: str = "") -> None:
    def look() -> Any:
        turn(but=but)
        return condition()

    wait_until(look, within_s=100, what=what, every_s=0.5)


def newest(job: Job) -> Attempt:
    return job.attempts.select_related("resumed_from").order_by("-fence").first()  # type: ignore[return-value]


def runs(job: Job, fence: int, steps: int = 0) -> bool:
    attempt = newest(job)
    return attempt.fence == fence and attempt.status == "running" and attempt.last_step >= steps


def test_a_training_goes_on_at_another_size_with_the_very_state_that_was_saved(
    server: Server, settings: Any, own_var_dir: Path
) -> None:
    settings.VAR_DIR, settings.TRAINER_ENDPOINT = own_var_dir, server.url
    job = make_filled_job(now=timezone.now(), num_workers=2, model="tiny:60k", goal_steps=20_000, training=TRAINING)
    until(lambda: job.attempts.exists() and runs(job, 1, steps=5), "the first attempt trains")
    first = newest(job)

    order = job_resize(job=job, num_workers=1, now=timezone.now())
    until(lambda: newest(job).fence == 2, "the trainer has left and another attempt is there")
    first.refresh_from_db()
    assert (first.status, first.exit_code) == ("resized", 80)
    until(lambda: runs(job, 2), "the second attempt has said hello", but="resize")
    second = newest(job)
    saved = second.resumed_from
    assert saved is not None
    assert (second.world_size, saved.attempt_id, saved.world_size) == (1, first.pk, 2)
    assert (saved.proof, saved.parts) == ("equal", saved.loaded_parts)
    assert set(saved.parts) >= {"parameters", "moments", "gradients", "cursor"}
    assert (second.start_step, saved.step) == (saved.step, first.last_step + 1)

    (worker,) = backend_named("local").poll(second.handle).workers
    os.kill(worker.pid, signal.SIGKILL)  # type: ignore[arg-type]
    until(lambda: runs(job, 3, steps=saved.step), "a third attempt trains")
    third = newest(job)
    assert (third.world_size, third.start_step >= saved.step) == (1, True)
    assert Snapshot.objects.filter(job=job, status="corrupt").count() == 0

    order.refresh_from_db()
    assert (order.status, order.result["proof"]) == ("done", "equal")
    assert "loaded exactly what was saved" in Event.objects.get(job=job, kind="job.resized").text
    assert Instance.objects.get(attempt=first).status == "terminated"
    until(lambda: Evaluation.objects.filter(attempt=third).exists(), "it tells the loss on what is held out")
    Job.objects.filter(pk=job.pk).update(goal_loss=100.0)  # its loss is below that: the trainer finishes by itself
    until(lambda: _looked_at(job).status == "succeeded", "the target is reached")
    third.refresh_from_db()
    assert (third.status, third.exit_code) == ("done", 0)
    assert third.detail.startswith("target loss 100 reached: ")
    assert third.detail.endswith(" on the held-out samples")
    assert set(Evaluation.objects.filter(attempt=third).latest("step").shards) == {"a", "b"}
    assert Snapshot.objects.filter(job=job, kind="weights", step=third.last_step + 1, status="complete").exists()
    until(lambda: not job.instances.exclude(status="terminated").exists(), "all processes have ended")


def _looked_at(job: Job) -> Job:
    """What the rules' clock does, once."""
    job.refresh_from_db()
    job_evaluate(job=job, now=timezone.now())
    return job
