"""`drain_worker` and `rebalance`: a slow worker gets less to do, or the job goes on without it and its place."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.errors import Conflict, Invalid
from jobs.models import Attempt, Command, Decision, Directive, Job
from jobs.places import places_for
from jobs.services.approvals import decision_approve
from jobs.services.attempts import attempt_finish, attempt_start
from jobs.services.balance import job_rebalance
from jobs.services.directives import directive_acknowledge
from jobs.services.resizes import job_drain
from tests.factories import NOW, make_attempt, make_cast, make_decision, make_job
from tests.workers.world import command_of, ended, launched, make_filled_job, script
from trainer_client.backends import LaunchSpec
from trainer_client.backends.local import LocalBackend
from workers.execute import command_execute
from workers.launch_specs import launch_spec
from workers.watch import attempts_watch

pytestmark = pytest.mark.django_db
CAN = ["resize", "drain", "rebalance"]


def carried_out(order: Command) -> str:
    Command.objects.filter(pk=order.pk).update(due_at=NOW)
    return command_execute(order.pk)


def hello(attempt: Attempt, **fields: Any) -> None:
    attempt.refresh_from_db()
    capable = {"world_size": attempt.world_size, "start_step": 0, "capabilities": CAN}
    attempt_start(attempt=attempt, now=timezone.now(), hello=capable | fields)


def test_the_place_of_a_drained_worker_is_left_out_and_the_others_stay(runs: Callable[[list[str]], None]) -> None:
    runs(script("leave('resized', 80)"))
    job = make_filled_job(num_workers=3)
    attempt = launched(job)
    assert attempt.places == []
    hello(attempt)
    given = job_drain(job=Job.objects.get(pk=job.pk), rank=1, now=NOW)
    assert carried_out(given) == "waiting"
    assert Directive.objects.get(action="drain").args == {"rank": 1}
    with pytest.raises(Conflict, match="under way"):
        job_drain(job=job, rank=0, now=NOW)
    ended(attempt)
    attempts_watch(now=NOW)
    launch = command_of(job, "launch")
    assert carried_out(launch) == "done"
    heir = job.attempts.order_by("-fence").first()
    assert heir is not None
    assert (heir.world_size, heir.places) == (2, [0, 2])
    assert launch_spec(heir).env["COUNTERFLOW_PLACES"] == "0,2"
    hello(heir)
    assert carried_out(given) == "done"
    second = job_drain(job=Job.objects.get(pk=job.pk), rank=1, now=NOW)  # that is place 2
    assert carried_out(second) == "waiting"
    assert Job.objects.get(pk=job.pk).drained == [1, 2]


def test_places_come_back_when_there_are_no_others() -> None:
    assert places_for(2, drained=[1], num_known=3) == [0, 2]
    assert places_for(1, drained=[1, 2], num_known=3) == [0]
    assert places_for(2, drained=[2, 1], num_known=3) == [0, 2]  # the one that was drained first
    assert places_for(4, drained=[1], num_known=3) == [0, 1, 2, 3][:4]
    assert places_for(3, drained=[1], num_known=4) == [0, 2, 3]


def test_a_refused_drain_takes_nothing_away(runs: Callable[[list[str]], None]) -> None:
    runs(script("import time; time.sleep(60)"))
    job = make_filled_job(num_workers=2)
    attempt = launched(job)
    hello(attempt)
    given = job_drain(job=Job.objects.get(pk=job.pk), rank=0, now=NOW)
    assert carried_out(given) == "waiting"
    order = Directive.objects.get(action="drain")
    directive_acknowledge(
        attempt=attempt, directive_uuid=str(order.uuid), outcome="refused", step=None, detail="not now", now=NOW
    )
    assert carried_out(given) == "failed"
    job.refresh_from_db()
    assert (job.num_workers, job.drained) == (2, [])
    with pytest.raises(Invalid, match="no worker 2"):
        job_drain(job=job, rank=2, now=NOW)


def test_the_launcher_uses_the_gpus_of_the_places(tmp_path: Path) -> None:
    show = "import os; print(os.environ['RANK'], os.environ['COUNTERFLOW_PLACE'], os.environ['CUDA_VISIBLE_DEVICES'])"
    env = {"COUNTERFLOW_PLACES": "0,2", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    spec = LaunchSpec(
        claim="c1", job="j", attempt="a", command=[sys.executable, "-c", show], env=env, num_workers=2, run_dir=str(tmp_path)
    )  # fmt: skip
    backend = LocalBackend(tmp_path / "root")
    backend.wait(backend.launch(spec), 60.0)
    logs = [(tmp_path / "logs" / f"rank-{rank}.log").read_text().split() for rank in (0, 1)]
    assert logs == [["0", "0", "4,6"], ["1", "2", "4,6"]]


def running(num_workers: int = 2) -> tuple[Any, Job, Attempt]:
    cast = make_cast()
    job = make_job(cast.team, status="queued", num_workers=num_workers)
    attempt, _ = make_attempt(job, num_workers=num_workers)
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=CAN)
    job.refresh_from_db()
    return cast, job, attempt


def test_shares_reach_the_trainer_and_what_cannot_be_is_refused_with_the_reason() -> None:
    _, job, attempt = running()
    given = job_rebalance(job=job, shares={"0": 1, "1": 0.5}, now=NOW)
    assert carried_out(given) == "done"
    order = Directive.objects.get(action="rebalance")
    assert order.args == {"shares": {"0": 1.0, "1": 0.5}, "num_workers": 2}
    for shares in ({"0": 1}, {"0": 1, "1": -1}, {"0": 0, "1": 0}, {"0": 1, "1": True}, {"0": 1, "1": "x"}):
        with pytest.raises(Invalid):
            job_rebalance(job=job, shares=shares, now=NOW)
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["resize"])
    with pytest.raises(Conflict, match="does not know"):
        job_rebalance(job=job, shares={}, now=NOW)


def approved(job: Job, cast: Any, num_workers: int) -> Decision:
    args = {"action": "rebalance", "shares": {str(r): 1.0 for r in range(num_workers)}, "num_workers": num_workers}
    decision = make_decision(job, rule="straggler", kind="rebalance", subject="worker:1", args=args, allowed={})
    return decision_approve(decision=decision, now=NOW, user=cast.approver)


def test_a_decision_on_shares_succeeds_with_the_trainers_word_and_fails_if_the_workers_leave_first() -> None:
    cast, job, attempt = running()
    first = approved(job, cast, 2)
    assert carried_out(first.commands.get()) == "done"
    order = first.directives.get()
    directive_acknowledge(
        attempt=attempt, directive_uuid=str(order.uuid), outcome="applied", step=40, detail="", now=NOW
    )
    first.refresh_from_db()
    assert (first.status, first.applied_step) == ("succeeded", 40)
    second = approved(job, cast, 2)
    assert carried_out(second.commands.get()) == "done"
    attempt_finish(attempt=attempt, now=NOW, outcome="preempted", word={})
    second.refresh_from_db()
    assert second.status == "failed"
    assert "before it took effect" in second.failure


def test_shares_for_another_world_are_not_given_to_this_one() -> None:
    cast, job, _ = running()
    decision = approved(job, cast, 3)
    assert carried_out(decision.commands.get()) == "failed"
    decision.refresh_from_db()
    assert "the job has 2 by now" in decision.failure
