"""Machines that are paid for and on which no agent ever speaks (moto's server): given back, counted, and not bought for ever."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from jobs.epoch import plans_tick
from jobs.machines import DUD, DUD_LOOKED_AT, TAKEN
from jobs.models import Command, Event, Instance, Job, PlanState
from jobs.selectors.costs import instance_cost_usd, job_costs_usd
from jobs.selectors.duds import MAX_DUDS, PAUSE, PAUSE_MAX, duds_in_a_row, job_hold_words, offer_pauses
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_resume
from tests.machines.moto_cloud import MotoCloud
from tests.machines.test_aws import SLEEP, job_on_ec2
from tests.machines.world import machines, order, turn, until
from workers.aws import machines as aws_machines
from workers.machine_access import cloud, tag
from workers.machines import machines_sync

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def job(runs: Any, moto_cloud: MotoCloud) -> Job:
    """A job for which machines can be bought that never boot."""
    runs(SLEEP)
    moto_cloud.boots = False
    return job_on_ec2()


def boot_time_passes(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """All machines of the job that were made have been silent for too long."""
    with monkeypatch.context() as patch:
        patch.setattr(aws_machines, "BOOT_MAX_S", -1.0)
        machines_sync(rows=machines(job, "provisioning"), now=timezone.now())


def pause_passes() -> None:
    """It is long ago that anything became of the machines that ended."""
    long_ago = timezone.now() - PAUSE_MAX
    Instance.objects.filter(detail=DUD).update(status_at=long_ago)
    Instance.objects.filter(status="requested").update(asked={})
    Command.objects.filter(status="issued").update(due_at=timezone.now())


def events(job: Job, kind: str) -> list[Event]:
    return list(Event.objects.filter(job=job, kind=kind).order_by("id"))


def test_a_machine_whose_agent_never_speaks_is_given_back_and_is_in_the_ledger(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    order(job, "procure", 0, 1)
    turn()
    turn()
    (row,) = machines(job)
    assert (row.status, row.started_at is None) == ("provisioning", False)  # it costs all the same
    boot_time_passes(job, monkeypatch)
    until(lambda: row.refresh_from_db() or row.status == "terminated", "it was given back")
    assert row.detail == DUD
    (told,) = events(job, "instance.dud")
    assert "its agent has not spoken within" in told.text
    assert Decimal(told.data["cost_usd"]) > 0
    held = Decimal(str((row.ended_at - row.started_at).total_seconds()))
    assert instance_cost_usd(row, start=None, end=timezone.now()) == pytest.approx(held * Decimal("0.526") / 3600)
    assert job_costs_usd(jobs=[job], now=timezone.now())[job.pk] >= instance_cost_usd(
        row, start=None, end=timezone.now()
    )


def test_an_offer_is_left_alone_for_a_while_after_such_a_machine_and_longer_after_the_next(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = order(job, "procure", 0, 1)
    turn()
    boot_time_passes(job, monkeypatch)
    turn()
    command.refresh_from_db()
    Command.objects.filter(pk=command.pk).update(due_at=timezone.now())
    turn()
    dud, waiting = machines(job)
    assert (dud.detail, waiting.status, waiting.asked["num"]) == (DUD, "requested", 1)
    command.refresh_from_db()
    assert "no agent spoke on the last machine of this offer" in command.error
    assert len(cloud().machines(tag())) == 1, "the next one was not asked for yet"
    again_at = offer_pauses(offers=[dud.offer_id], now=timezone.now())[dud.offer_id]["again_at"]
    dud.refresh_from_db()
    assert again_at == (dud.status_at + PAUSE).timestamp()

    pause_passes()
    turn()
    waiting.refresh_from_db()
    assert waiting.status == "provisioning"
    boot_time_passes(job, monkeypatch)
    waiting.refresh_from_db()
    pause = offer_pauses(offers=[dud.offer_id], now=timezone.now())[dud.offer_id]
    assert (pause["num"], pause["again_at"]) == (2, (waiting.status_at + 2 * PAUSE).timestamp())


def test_after_three_in_a_row_the_job_is_held_until_somebody_lets_it_go_on(
    job: Job, monkeypatch: pytest.MonkeyPatch, moto_cloud: MotoCloud
) -> None:
    command = order(job, "procure", 0, 1)
    for _ in range(MAX_DUDS):
        turn()
        boot_time_passes(job, monkeypatch)
        assert len(machines(job, "provisioning")) == 0
        turn()
        pause_passes()
    (held,) = events(job, "job.held")
    assert f"no agent spoke on {MAX_DUDS} machines in a row" in held.text
    assert all(row.provider_id in held.text for row in machines(job))
    for _ in range(3):
        pause_passes()
        turn()
    assert len(machines(job)) == MAX_DUDS, "nothing more was asked for"
    command.refresh_from_db()
    assert "held: no agent spoke on the last 3 machines" in command.error
    PlanState.objects.update(due_at=timezone.now())
    plans_tick(now=timezone.now())
    assert PlanState.objects.get(job=job).waits_for.startswith("held: no agent spoke")

    moto_cloud.boots = True
    job.refresh_from_db()
    assert job_resume(job=job, now=timezone.now(), actor=SYSTEM).status == "queued"
    assert job_hold_words(job=job) == ""
    assert {row.detail for row in machines(job)} == {DUD_LOOKED_AT}
    assert len(events(job, "job.released")) == 1
    until(lambda: machines(job, "running"), "a machine whose agent speaks")
    assert machines(job, "running")[0].running_at is not None


def test_a_machine_that_ran_in_between_ends_the_row(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    order(job, "procure", 0, 2)
    turn()
    boot_time_passes(job, monkeypatch)
    rows = machines(job)
    assert len(duds_in_a_row(rows)) == 2
    Instance.objects.filter(pk=rows[1].pk).update(running_at=timezone.now(), detail="given back")
    assert duds_in_a_row(machines(job)) == []


def test_a_machine_that_ec2_could_not_start_counts_and_one_that_it_took_does_not(
    job: Job, moto_cloud: MotoCloud
) -> None:
    order(job, "procure", 2)
    turn()
    turn()
    broken, taken = machines(job)
    for row, code in ((broken, "Client.InternalError"), (taken, "Server.SpotInstanceTermination")):
        moto_cloud.kill(row.claim)
        moto_cloud.instance(row.claim).state_reason.code = code
    machines_sync(rows=[broken, taken], now=timezone.now())
    for row in (broken, taken):
        row.refresh_from_db()
    assert (broken.status, broken.detail) == ("terminated", DUD)
    assert (taken.status, taken.detail) == ("terminated", TAKEN)
    assert "EC2 ended it before its agent spoke" in events(job, "instance.dud")[0].text


def test_pauses_grow_to_half_an_hour(job: Job) -> None:
    now = timezone.now()
    order(job, "procure", 0, 1)
    turn()
    (row,) = machines(job)
    common = {"team": job.team, "job": job, "offer": row.offer, "backend": row.backend, "kind": row.kind}
    for number in range(9):
        Instance.objects.create(
            claim=f"dud-{number}", status="terminated", detail=DUD, created_at=now, status_at=now, **common
        )
        again_at = offer_pauses(offers=[row.offer_id], now=now)[row.offer_id]["again_at"]
        assert again_at == (now + min(PAUSE_MAX, PAUSE * 2**number)).timestamp()
    assert offer_pauses(offers=[row.offer_id], now=now + dt.timedelta(days=2)) == {}
