"""A real training on bought machines: started on two, one is taken after a notice, and the state goes on unharmed on the other."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.epoch import plans_tick
from jobs.models import Attempt, Decision, Instance, Job, PlanState, Team
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.machines import holdings
from jobs.services.approvals import decision_approve
from jobs.services.commands import command_issue
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel
from tests.contract.conftest import Server
from tests.contract.conftest import server as server
from tests.factories import make_job
from tests.machines.conftest import Provider
from tests.machines.world import FILE, turn, until
from tests.workers.world import make_filled_job
from workers.machine_access import tag
from workers.machines import market_look

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]
ONE = {"resources": {"spot_policy": "only", "nodes": {"min": 1, "max": 1}}}
TRAINING = {"global_batch": 6, "micro_batch": 1, "seq_len": 32, "snapshot_every": 100, "export_every": 100_000}


def newest(job: Job) -> Attempt:
    return job.attempts.select_related("resumed_from").order_by("-fence").first()  # type: ignore[return-value]


def runs(job: Job, fence: int, steps: int = 0) -> bool:
    attempt = newest(job)
    return attempt is not None and attempt.fence == fence and attempt.status == "running" and attempt.last_step >= steps


def test_a_training_survives_the_loss_of_a_machine_with_the_very_state_that_it_had(
    server: Server, settings: Any, own_var_dir: Path, provider: Provider
) -> None:
    settings.VAR_DIR, settings.TRAINER_ENDPOINT = own_var_dir, server.url
    market_look(now=timezone.now())
    job = make_filled_job(
        now=timezone.now(), num_workers=2, model="tiny:60k", goal_steps=100_000, training=TRAINING, config=FILE
    )
    turn()
    assert not job.attempts.exists()  # no machines, no start
    order = command_issue(job=job, kind="procure", key="two", args={"spot": 2, "on_demand": 0}, now=timezone.now())
    until(lambda: runs(job, 1, steps=3), "the first attempt trains")
    first = newest(job)
    assert (first.world_size, holdings(job).spot) == (2, 2)

    taken = first.placements.get(rank=1).instance
    provider.client.interrupt(taken.claim)
    until(lambda: runs(job, 2, steps=1), "it trains on the machine that stays")
    second = newest(job)
    first.refresh_from_db()
    assert (first.status, second.world_size) == ("resized", 1)
    assert second.resumed_from is not None
    assert second.resumed_from.proof == "equal"
    assert second.start_step == first.last_step + 1
    assert [p.instance_id for p in second.placements.all()] == [first.placements.get(rank=0).instance_id]
    order.refresh_from_db()
    assert order.status == "done"

    until(lambda: Instance.objects.get(pk=taken.pk).status == "terminated", "its end is confirmed")
    taken.refresh_from_db()
    assert taken.ended_at is not None
    assert instance_cost_usd(taken, start=None, end=timezone.now()) > 0
    first_in_line = makes_room(job, second, settings)
    for one in (job, first_in_line):
        one.refresh_from_db()
        job_cancel(job=one, now=timezone.now(), actor=SYSTEM)
    until(lambda: not Instance.objects.exclude(status="terminated").exists(), "all machines were given back")
    bill = Decimal(provider.client.bill(tag())["usd"])
    now = timezone.now()
    assert round(sum(instance_cost_usd(m, start=None, end=now) for m in Instance.objects.all()), 9) == round(bill, 9)


def makes_room(job: Job, attempt: Attempt, settings: Any) -> Job:
    """A job that comes first gets the only machine: the trainer saves and leaves, and then another is bought. Returns that job."""
    settings.PLAN_SLOT_S, settings.PLAN_EVERY_S = 1.0, 1.0
    Team.objects.filter(pk=job.team_id).update(max_gpus=1)
    high = make_job(
        job.team,
        status="queued",
        dataset=job.dataset,
        num_workers=1,
        priority=50,
        model="tiny:60k",
        training=TRAINING,
        config=ONE,
    )

    def asked() -> Decision | None:
        job.refresh_from_db()
        plans_tick(now=timezone.now())
        return Decision.objects.filter(job=job, kind="preempt_job", status="proposed").first()

    decision: Decision = until(asked, "it is asked to make room")
    assert decision.args["for"] == str(high.uuid)
    held = Instance.objects.get(job=job, status="running")
    decision_approve(decision=decision, now=timezone.now(), by_rule="test")

    def bought() -> Instance | None:
        plans_tick(now=timezone.now())
        return Instance.objects.filter(job=high, status="running").first()

    machine: Instance = until(bought, "the other job has a machine")
    held.refresh_from_db()
    attempt.refresh_from_db()
    assert (attempt.status, held.status) == ("resized", "terminated")
    assert held.ended_at is not None
    assert machine.created_at >= held.ended_at - dt.timedelta(seconds=1)
    assert job.snapshots.filter(kind="gradient", status="verified", step=attempt.last_step + 1).exists()
    assert PlanState.objects.get(job=job).waits_for.startswith(f"gave way to {high.name} ({decision})")
    return high
