"""Machines of a real provider process: asked for once, seen as they are, given back until it is confirmed."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import httpx
import pytest
from django.utils import timezone

from jobs.machines import ORPHAN, TAKEN
from jobs.models import Event, Instance, Job, PlanState, Team
from jobs.selectors.costs import instance_cost_usd, job_costs_usd
from jobs.selectors.ledger import ledger_of
from jobs.selectors.machines import Target, holdings
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel
from jobs.services.machines import machines_release
from tests.machines.conftest import Provider
from tests.machines.world import FILE, leaves, live, machines, order, planned_job, trains, turn, until
from tests.services import wait_until
from tests.workers.world import make_filled_job, script
from workers import machine_orphans
from workers.commands import allocate
from workers.commands.registry import Work
from workers.execute import command_execute
from workers.machine_access import tag
from workers.machine_orphans import machine_orphans_sweep
from workers.machines import machines_watch, market_look

pytestmark = pytest.mark.django_db(transaction=True)
SLEEP = script("import time; time.sleep(120)")


@pytest.fixture(autouse=True)
def ranks_sleep(runs: Any) -> None:
    runs(SLEEP)


def told(provider: Provider) -> list[dict[str, Any]]:
    return provider.client.machines(tag(), every=True)


def test_only_who_may_read_the_address_may_ask(provider: Provider) -> None:
    address = provider.folder / "address"
    assert address.stat().st_mode & 0o077 == 0
    base = address.read_text().rpartition("/")[0]
    assert [httpx.get(base + path).status_code for path in ("/bill", "/x/bill")] == [403, 403]


def test_a_create_whose_answer_is_lost_makes_one_machine(provider: Provider) -> None:
    job = planned_job()
    provider.client.fault("drop_create", 1)
    order(job, "procure", 2)
    until(lambda: holdings(job).spot == 2, "both machines run")
    assert len(told(provider)) == 2
    assert {row.claim for row in machines(job)} == {row["token"] for row in told(provider)}


def test_a_machine_made_before_its_order_was_written_on_is_taken_over(provider: Provider) -> None:
    job = planned_job()
    provider.client.fault("error", 1)
    assert command_execute(order(job, "procure", 1).pk) == "waiting"  # the row stands, nothing more
    (row,) = machines(job)
    assert row.status == "requested"
    assert row.offer is not None
    provider.client.create(
        row.claim, region=row.offer.region, zone=row.offer.zone, is_spot=True, tags={"counterflow": tag()[12:]}
    )
    until(lambda: holdings(job).spot == 1, "the machine runs")
    assert len(told(provider)) == 1


@pytest.mark.parametrize("state", ["requested", "provisioning", "running"])
def test_a_cancel_leaves_no_machine_in_whatever_state_it_was(provider: Provider, state: str) -> None:
    job = planned_job()
    order(job, "procure", 1)
    if state == "requested":
        provider.client.fault("capacity", 1)
    turn()
    if state == "running":
        until(lambda: holdings(job).spot == 1, "the machine runs")
    assert [row.status for row in machines(job)] == [state] or state == "provisioning"
    provider.client.fault("refuse_delete", 3)
    job.refresh_from_db()
    job_cancel(job=job, now=timezone.now(), actor=SYSTEM)
    until(lambda: not machines(job, "requested", "provisioning", "running"), "the end is asked for")
    until(lambda: all(row.status == "terminated" for row in machines(job)), "the end is confirmed")
    assert [row["status"] for row in told(provider) if row["status"] != "terminated"] == []


@pytest.mark.parametrize("state", ["requested", "provisioning", "terminating"])
def test_a_machine_that_ran_and_ended_while_nobody_looked_is_paid_for(provider: Provider, state: str) -> None:
    job = planned_job()
    if state == "requested":
        provider.client.fault("drop_create", 1)
    command_execute(order(job, "procure", 1).pk)
    (row,) = machines(job)
    if state == "terminating":
        machines_release(instances=[row], now=timezone.now())
    row.refresh_from_db()
    assert (row.status, row.started_at) == (state, None)
    wait_until(lambda: told(provider)[0]["status"] == "running", within_s=20, what="it runs")
    provider.client.kill(row.claim)
    until(lambda: all(row.status == "terminated" for row in machines(job)), "its end is seen")
    (bill,) = provider.client.bill(tag())["machines"]
    row.refresh_from_db()
    assert Decimal(bill["usd"]) > 0
    assert instance_cost_usd(row, start=None, end=timezone.now()) == pytest.approx(
        Decimal(bill["usd"]), abs=Decimal("1e-6")
    )
    assert row.provider_id == bill["id"]
    assert (row.detail == TAKEN) == (state != "terminating")


def test_a_cancel_while_the_job_recovers_leaves_no_machine_though_lists_are_late(provider: Provider) -> None:
    job = planned_job()
    order(job, "procure", 1)
    attempt = trains(job, 1)
    provider.client.kill(attempt.placements.get().instance.claim)
    until(lambda: Job.objects.get(pk=job.pk).status == "recovering", "it recovers")
    provider.client.fault("late", 1, 2.0)  # from here on lists leave a machine out for two seconds
    order(job, "procure", 1)
    until(lambda: machines(job, "provisioning", "running"), "there is another machine")
    job.refresh_from_db()
    job_cancel(job=job, now=timezone.now(), actor=SYSTEM)
    turn()
    assert not all(row.status == "terminated" for row in machines(job)), "no end is believed before it is confirmed"
    until(lambda: all(row.status == "terminated" for row in machines(job)), "the end is confirmed")
    wait_until(lambda: len(told(provider)) == 2, within_s=20, what="lists have both")
    assert [row["status"] for row in told(provider)] == ["terminated"] * 2
    assert Job.objects.get(pk=job.pk).status == "cancelled"
    assert not job.attempts.filter(status__in=("starting", "running")).exists()


def test_a_machine_that_is_asked_for_in_the_moment_of_a_cancel_is_given_back(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = planned_job()
    command = order(job, "procure", 1)
    checked = allocate._checked

    def cancelled_after_the_check(work: Work) -> Target:
        target = checked(work)
        job_cancel(job=Job.objects.get(pk=job.pk), now=timezone.now(), actor=SYSTEM)
        return target

    with monkeypatch.context() as moment:
        moment.setattr(allocate, "_checked", cancelled_after_the_check)
        command_execute(command.pk)
    until(lambda: all(row.status == "terminated" for row in machines(job)), "nothing is left of it")
    assert [row for row in told(provider) if row["status"] != "terminated"] == []
    assert command_execute(order(job, "procure", 1).pk) == "failed", "and nothing follows"


def test_where_there_is_none_the_pause_grows_and_a_smaller_target_takes_the_wish_back(provider: Provider) -> None:
    job = planned_job()
    provider.client.fault("capacity", 100)
    command = order(job, "procure", 2)
    turn()
    turn()
    rows = machines(job)
    assert [(row.status, row.asked["num"]) for row in rows] == [("requested", 1)] * 2
    machines_watch(now=timezone.now() + dt.timedelta(seconds=1.5))
    rows = machines(job)
    assert {row.asked["num"] for row in rows} == {2}
    assert rows[0].asked["again_at"] - timezone.now().timestamp() > 1.5
    command.refresh_from_db()
    assert "Waits for 2 machines: no v100-1x to be had" in command.error

    order(job, "idle", 0)
    until(lambda: all(row.status == "terminated" for row in machines(job)), "nothing is wanted")
    assert job_costs_usd(jobs=[job], now=timezone.now())[job.pk] == 0
    until(lambda: command.refresh_from_db() or command.status == "failed", "the older order ends")
    assert "A newer order took its place" in command.error


def test_an_order_before_the_first_quote_waits_for_it(provider: Provider) -> None:
    job = make_filled_job(now=timezone.now(), config=FILE)
    command = order(job, "procure", 1)
    turn()
    command.refresh_from_db()
    assert (command.status, "no spot offer is known yet" in command.error) == ("issued", True)
    market_look(now=timezone.now())
    until(lambda: holdings(job).spot == 1, "the machine runs")


def test_a_machine_that_the_list_forgets_is_not_taken_for_gone(provider: Provider) -> None:
    job = planned_job()
    order(job, "procure", 1)
    until(lambda: holdings(job).spot == 1, "the machine runs")
    provider.client.fault("late", 1, seconds=3600)
    assert provider.client.machines(tag()) == []
    turn()
    assert holdings(job).spot == 1


def test_a_notice_moves_the_job_off_the_machine_which_is_given_back_before_it_is_taken(provider: Provider) -> None:
    job = planned_job()
    order(job, "procure", 2)
    first = trains(job, 2)
    victim = first.placements.get(rank=0).instance
    provider.client.interrupt(victim.claim)
    leaves(first)
    second = trains(job, 1)
    assert second.placements.get().instance_id == first.placements.get(rank=1).instance_id
    until(lambda: victim.refresh_from_db() or victim.status == "terminated", "it was given back")
    assert victim.ended_at < victim.ends_by
    preempt = job.commands.get(kind="preempt")
    assert (preempt.status, preempt.queue, preempt.result["saved"]) == ("done", "urgent", True)
    assert PlanState.objects.get(job=job).why == "A machine is being taken."
    assert holdings(job).spot == 1


def test_a_machine_taken_without_a_word_is_no_failure_of_the_job(provider: Provider) -> None:
    job = planned_job()
    order(job, "procure", 2)
    attempt = trains(job, 2)
    victim = attempt.placements.get(rank=1).instance
    provider.client.kill(victim.claim)
    until(lambda: attempt.refresh_from_db() or attempt.status == "preempted", "the attempt has ended")
    victim.refresh_from_db()
    assert (victim.status, victim.detail) == ("terminated", TAKEN)
    assert f"Lost machine {victim.provider_id}" in attempt.detail
    trains(job, 1)  # it goes on with what is left
    job.refresh_from_db()
    assert job.status == "running"


def test_spot_is_replaced_by_on_demand_before_it_is_given_back(provider: Provider) -> None:
    job = planned_job()
    order(job, "procure", 1)
    first = trains(job, 1)
    until(lambda: not job.commands.filter(kind="procure", status__in=("issued", "claimed")).exists(), "bought")
    (old,) = machines(job)
    switch = order(job, "switch_to_on_demand", 0, 1)
    until(lambda: holdings(job).on_demand == 1, "the new machine runs")
    assert holdings(job).spot == 1
    leaves(first)
    second = trains(job, 1)
    assert second.placements.get().instance.kind == "on_demand"
    until(lambda: [row.pk for row in machines(job, "terminated")] == [old.pk], "the old one was given back")
    switch.refresh_from_db()
    assert (switch.status, switch.result["released"]) == ("done", 1)
    assert len({row["token"] for row in told(provider)}) == 2


def test_a_target_of_none_saves_leaves_and_waits(provider: Provider) -> None:
    job = planned_job()
    order(job, "procure", 1)
    attempt = trains(job, 1)
    order(job, "idle", 0)
    leaves(attempt)
    until(lambda: not machines(job, "requested", "provisioning", "running", "terminating"), "all given back")
    until(lambda: job.commands.filter(kind="launch", status="issued").exists(), "the launch waits")
    job.refresh_from_db()
    launch = job.commands.filter(kind="launch").latest("id")
    assert (job.status, live(job)) == ("recovering", None)
    assert "Holds no machines, as ordered" in launch.error


def test_the_ledger_is_the_bill_of_the_provider_to_the_cent_through_prices_and_a_kill(provider: Provider) -> None:
    job = planned_job()
    order(job, "procure", 2, 1)
    attempt = trains(job, 3)
    provider.kill()
    provider.start()
    until(lambda: any(len(row.prices) > 2 for row in machines(job)), "the price has changed twice", within_s=30)
    assert any(len(row["prices"]) > 2 for row in told(provider))
    order(job, "idle", 0)
    leaves(attempt)
    until(lambda: all(row.status == "terminated" for row in machines(job)), "all given back")
    now = timezone.now()
    bill = provider.client.bill(tag())
    lines = {line["token"]: round(Decimal(line["usd"]), 9) for line in bill["machines"]}
    assert {row.claim: round(instance_cost_usd(row, start=None, end=now), 9) for row in machines(job)} == lines
    ledger = ledger_of(team=job.team, start=now - dt.timedelta(hours=1), end=now)
    assert round(ledger.sums.total, 2) == round(Decimal(bill["usd"]), 2)
    assert ledger.sums.by_kind["on_demand"] > ledger.sums.by_kind["spot"] / 2 > 0


def test_a_machine_that_is_nobodys_is_shown_counted_and_ended_and_those_of_others_are_left_alone(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    job = planned_job()
    ours = {"counterflow": settings.DEPLOYMENT, "team": str(job.team.uuid), "job": str(job.uuid)}
    place = {"region": "east-1", "zone": "east-1a", "is_spot": True}
    provider.client.create("lost", **place, tags=ours)
    provider.client.create("theirs", **place, tags={"counterflow": "another"})
    now = timezone.now()
    assert machine_orphans_sweep(now=now) == {}  # its row may still be on its way
    monkeypatch.setattr(machine_orphans, "GRACE", dt.timedelta(0))
    later = now + dt.timedelta(seconds=5)
    assert machine_orphans_sweep(now=later) == {"lost": "adopted"}
    row = Instance.objects.get(claim="lost")
    assert (row.detail, row.team, row.job) == (ORPHAN, job.team, job)
    assert Event.objects.filter(kind="instance.orphan").count() == 1
    assert holdings(job).usable == 0 or not live(job)
    machine_orphans_sweep(now=later + dt.timedelta(seconds=5))
    until(lambda: Instance.objects.get(claim="lost").status == "terminated", "it was ended")
    theirs = provider.client.describe("theirs")
    assert theirs is not None
    assert theirs["status"] in ("pending", "running")


def test_two_jobs_share_the_quota_of_their_team_and_a_spent_budget_buys_nothing(provider: Provider) -> None:
    one, two = planned_job(), planned_job()
    Team.objects.filter(pk=one.team_id).update(max_gpus=3)
    type(two).objects.filter(pk=two.pk).update(team=one.team_id)
    orders = [order(one, "procure", 2), order(two, "procure", 2)]
    for _ in range(3):
        turn()
    assert (len(machines(one)), len(machines(two))) == (2, 1)
    orders[1].refresh_from_db()
    assert "team quota: 3 of 3 GPUs" in orders[1].error

    type(one).objects.filter(pk=one.pk).update(budget_usd=Decimal("0.50"))
    last = order(one, "procure", 3)
    Team.objects.filter(pk=one.team_id).update(max_gpus=None)
    turn()
    last.refresh_from_db()
    assert "budget:" in last.error
    assert len(machines(one)) == 2
