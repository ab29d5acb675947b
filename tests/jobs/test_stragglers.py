"""A slow worker: from its reports to a decision, an order, and what it brought."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import numpy as np
import pytest
from django.core.management import call_command
from django.utils import timezone

from jobs.models import Attempt, Command, Directive, Job, Worker
from jobs.planning import outcome_measure, stragglers_evaluate
from jobs.services.approvals import decision_approve
from jobs.services.attempts import attempt_open, attempt_start
from jobs.services.directives import directive_acknowledge
from jobs.services.events import Actor
from jobs.services.rollups import worker_steps_add
from jobs.services.rules import rule_set
from jobs.stragglers import straggler_facts
from tests.factories import make_cast, make_job
from workers.execute import command_execute

pytestmark = pytest.mark.django_db
CAN = ["resize", "drain", "rebalance"]


def running(*, num_workers: int = 4, capabilities: list[str] = CAN, **fields: Any) -> tuple[Any, Job, Attempt]:
    now = timezone.now()
    cast = make_cast()
    job = make_job(cast.team, status="queued", now=now, goal_steps=1000, num_workers=num_workers, **fields)
    attempt, _ = attempt_open(job=job, num_workers=num_workers, now=now)
    hello = {"world_size": num_workers, "start_step": 0, "planned_steps": 1000, "capabilities": capabilities}
    attempt_start(attempt=attempt, now=now, hello=hello)
    return cast, job, attempt


def trained(job: Job, attempt: Attempt, start: int, stop: int, speeds: list[float], sizes: list[int]) -> None:
    """Steps as synchronous workers report them: own times differ, wall times do not."""
    wall = 0.05 + 0.1 * max(s * n for s, n in zip(speeds, sizes, strict=True))
    steps, ranks = np.meshgrid(np.arange(start, stop), np.arange(len(speeds)))
    num = steps.size
    worker_steps_add(
        attempt_id=attempt.pk,
        planned_steps=1000,
        step=steps.ravel(),
        worker=ranks.ravel(),
        step_time_s=np.full(num, wall),
        wait_s=np.full(num, np.nan),
        tokens=np.zeros(num, np.int64),
        grad_norm=np.full(num, np.nan),
        nonfinite=np.zeros(num, bool),
        compute_s=(0.1 * np.array(speeds) * np.array(sizes))[ranks.ravel()],
        num_micro=np.array(sizes, float)[ranks.ravel()],
    )
    Attempt.objects.filter(pk=attempt.pk).update(last_step=stop - 1)
    Job.objects.filter(pk=job.pk).update(current_step=stop)
    job.refresh_from_db()


def test_a_slow_worker_gets_a_smaller_share_and_what_it_brought_is_measured() -> None:
    cast, job, attempt = running()
    trained(job, attempt, 0, 80, [1, 1, 1, 2], [4, 4, 4, 4])
    now = timezone.now()
    (decision,) = stragglers_evaluate(job=job, now=now)
    assert (decision.kind, decision.rule, decision.subject) == ("rebalance", "straggler", "worker:3")
    assert decision.args["shares"] == {"0": 5, "1": 5, "2": 4, "3": 2}
    assert decision.evidence["step_time_s"] == pytest.approx(0.85)
    assert stragglers_evaluate(job=job, now=now) == []  # it stands already
    out = StringIO()
    call_command("replay_decision", str(decision.uuid), "--json", stdout=out)
    assert json.loads(out.getvalue())["same"] is True

    decision_approve(decision=decision, now=now, user=cast.approver)
    command = decision.commands.get()
    assert command_execute(command.pk) == "done"
    order = Directive.objects.get(decision=decision)
    assert (order.action, order.args["num_workers"]) == ("rebalance", 4)
    directive_acknowledge(
        attempt=attempt, directive_uuid=str(order.uuid), outcome="applied", step=82, detail="", now=now
    )
    trained(job, attempt, 80, 82, [1, 1, 1, 2], [4, 4, 4, 4])
    trained(job, attempt, 82, 110, [1, 1, 1, 2], [5, 5, 4, 2])
    decision.refresh_from_db()
    assert not outcome_measure(decision=decision, now=now)
    trained(job, attempt, 110, 130, [1, 1, 1, 2], [5, 5, 4, 2])
    decision.refresh_from_db()
    assert outcome_measure(decision=decision, now=now)
    decision.refresh_from_db()
    assert decision.outcome["verdict"] == "helped"
    assert decision.outcome["step_time_before_s"] == pytest.approx(0.85)
    assert decision.outcome["step_time_after_s"] == pytest.approx(0.55)
    assert decision.outcome["delta_eta_s"] == pytest.approx(-0.3 * (1000 - 82))
    assert stragglers_evaluate(job=job, now=now) == []  # still slow, and well shared out

    trained(job, attempt, 130, 170, [1, 1, 1, 1], [5, 5, 4, 2])
    (back,) = stragglers_evaluate(job=job, now=now)
    assert back.args["shares"] == {"0": 4, "1": 4, "2": 4, "3": 4}


def test_a_rule_may_share_out_anew_without_a_person() -> None:
    cast, job, attempt = running(num_workers=2)
    rule_set(team=cast.team, kind="rebalance", autonomy="auto", now=timezone.now(), actor=Actor.person(cast.admin))
    trained(job, attempt, 0, 40, [1, 2], [6, 6])
    (decision,) = stragglers_evaluate(job=job, now=timezone.now())
    assert (decision.status, decision.args["shares"]) == ("approved", {"0": 8, "1": 4})
    assert Command.objects.get(decision=decision).kind == "rebalance"


def test_a_worker_that_is_good_for_nothing_is_drained_and_a_yes_orders_it() -> None:
    """Losing it costs the time of the change only, which the job's own threshold allows."""
    cast, job, attempt = running(config={"rules": {"straggler": {"max_loss": 0.2}}})
    trained(job, attempt, 0, 40, [1, 1, 1, 9], [4, 4, 4, 4])
    (decision,) = stragglers_evaluate(job=job, now=timezone.now())
    assert (decision.kind, decision.args["rank"]) == ("drain_worker", 3)
    decision_approve(decision=decision, now=timezone.now(), user=cast.approver)
    assert command_execute(decision.commands.get().pk) == "waiting"
    assert Directive.objects.get(decision=decision).args == {"rank": 3}
    job.refresh_from_db()
    assert (job.num_workers, job.drained) == (3, [3])
    assert straggler_facts(job=job, now=timezone.now()) is None  # a resize is under way


def test_where_nothing_could_be_done_nothing_is_said() -> None:
    for fields in ({"num_workers": 1}, {"capabilities": ["stop"]}):
        _, job, attempt = running(**fields)
        num = attempt.world_size
        trained(job, attempt, 0, 40, [1, 1, 1, 2][:num], [4] * num)
        assert straggler_facts(job=job, now=timezone.now()) is None
    _, job, attempt = running()
    assert straggler_facts(job=job, now=timezone.now()) is None  # no step yet


def test_an_accelerator_that_is_throttled_is_part_of_the_evidence() -> None:
    _, job, attempt = running()
    Worker.objects.filter(attempt=attempt, rank=3).update(system={"throttled": True})
    trained(job, attempt, 0, 16, [1, 1, 1, 2], [4, 4, 4, 4])
    (decision,) = stragglers_evaluate(job=job, now=timezone.now())
    assert decision.evidence["throttled"] is True
