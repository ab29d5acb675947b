"""Ends in doubt: a machine that the provider tells nothing of, an end that is not confirmed, one that was believed too early."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from jobs.machines import TAKEN
from jobs.models import Event, Instance, Job, Offer, Orphan, Placement, PlanState
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.fleet import fleet_of
from jobs.selectors.machines import holdings
from jobs.services.machine_ends import AGAIN_MAX, MISSING, UNDEAD, ends_late_sweep
from jobs.services.machines import machine_request, machines_release
from tests.factories import NOW, make_team
from tests.machines.stub import StubCloud
from tests.planning.world import hold, make_market, planned_job, train
from trainer_client.backends import BackendError, Observation
from workers import machine_orphans
from workers import machines as watch
from workers.endings import attempt_conclude
from workers.machine_orphans import machine_orphans_sweep
from workers.machines import held_rows, machines_sync

pytestmark = pytest.mark.django_db
HOUR_S = 3600.0


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> StubCloud:
    stub = StubCloud()
    for module in (watch, machine_orphans):
        monkeypatch.setattr(module, "cloud", lambda: stub)
    return stub


@pytest.fixture
def offer() -> Offer:
    return make_market(spot=8)


@pytest.fixture
def job(offer: Offer) -> Job:
    return planned_job(hours=40.0)


@pytest.fixture
def machine(there: StubCloud, job: Job, offer: Offer) -> Instance:
    """One that has run for an hour."""
    (row,) = hold(job, offer, 1)
    Instance.objects.filter(pk=row.pk).update(provider_id="i-1")
    there.add(row.claim, started_at=NOW.timestamp(), prices=[[NOW.timestamp(), "1.5"]])
    row.refresh_from_db()
    return row


def look(seconds: float) -> None:
    machines_sync(rows=held_rows(), now=later(seconds))


def test_one_missing_answer_is_no_end_however_old_the_machine_is(there: StubCloud, machine: Instance) -> None:
    there.forgotten = {machine.claim}
    look(HOUR_S)
    machine.refresh_from_db()
    assert (machine.status, machine.missing_at) == ("running", later(HOUR_S))
    there.forgotten.clear()
    look(HOUR_S + 59)
    machine.refresh_from_db()
    assert (machine.status, machine.missing_at) == ("running", None)


def test_the_end_is_believed_after_a_minute_without_a_word_and_a_word_in_between_begins_it_anew(
    there: StubCloud, machine: Instance, job: Job
) -> None:
    there.forgotten = {machine.claim}
    for second in range(0, 50, 10):
        look(HOUR_S + second)
    there.forgotten.clear()
    look(HOUR_S + 50)
    there.forgotten = {machine.claim}
    for second in range(60, 121, 10):  # the first of them begins it anew
        look(HOUR_S + second)
        machine.refresh_from_db()
        assert machine.status == "running"
    look(HOUR_S + 121)
    machine.refresh_from_db()
    assert (machine.status, machine.detail) == ("terminated", TAKEN)
    assert machine.ended_at == later(HOUR_S + 60), "it cost until the provider first told nothing of it"
    assert instance_cost_usd(machine, start=None, end=later(9 * HOUR_S)) == Decimal("1.5") * 3660 / 3600
    assert "told nothing of it since" in Event.objects.get(kind="instance.terminated").text
    assert PlanState.objects.get(job=job).why == "A machine was taken."


def test_an_end_that_the_provider_names_is_believed_at_once(there: StubCloud, machine: Instance) -> None:
    there.add(machine.claim, "terminated", ended_at=later(HOUR_S - 3).timestamp())
    look(HOUR_S)
    machine.refresh_from_db()
    assert (machine.status, machine.ended_at) == ("terminated", later(HOUR_S - 3))


def test_neither_is_one_missing_answer_to_our_order_to_end(there: StubCloud, machine: Instance) -> None:
    machines_release(instances=[machine], now=later(HOUR_S))
    there.forgotten = {machine.claim}
    look(HOUR_S)
    machine.refresh_from_db()
    assert machine.status == "terminating"
    there.forgotten.clear()
    look(HOUR_S + 40)
    assert there.records[machine.claim]["status"] == "stopping"
    there.forgotten = {machine.claim}
    look(HOUR_S + 50)
    look(HOUR_S + 50 + MISSING.total_seconds() + 1)
    machine.refresh_from_db()
    assert (machine.status, machine.ended_at) == ("terminated", later(HOUR_S + 50))


def test_a_wish_that_never_left_ends_at_once(there: StubCloud, job: Job, offer: Offer) -> None:
    wish = machine_request(job=job, offer=offer, claim="wish", now=NOW)
    machines_release(instances=[wish], now=NOW)
    look(1)
    wish.refresh_from_db()
    assert (wish.status, instance_cost_usd(wish, start=None, end=later(HOUR_S))) == ("terminated", 0)


def test_work_lost_on_a_missing_machine_is_no_failure_and_another_is_planned_at_once(
    there: StubCloud, machine: Instance, job: Job
) -> None:
    attempt = train(job, workers=1, steps=5, step_time_s=20.0)
    Placement.objects.create(attempt=attempt, instance=machine, rank=0)
    there.forgotten = {machine.claim}
    look(HOUR_S)
    attempt_conclude(attempt=attempt, observed=Observation("lost"), now=later(HOUR_S + 1))
    attempt.refresh_from_db()
    machine.refresh_from_db()
    assert attempt.status == "preempted"
    assert attempt.detail == "Lost machine i-1, of which the provider tells nothing."
    assert (machine.status, holdings(job).usable) == ("terminating", 0), "nothing more is begun on it"
    assert PlanState.objects.get(job=job).why == "A machine is missing."
    assert instance_cost_usd(machine, start=None, end=later(HOUR_S + 10)) > 1, "it costs until its end is believed"


def test_an_end_that_is_refused_is_asked_for_less_and_less_often(there: StubCloud, machine: Instance) -> None:
    there.end_refused = BackendError("the machine cannot be ended now", permanent=False)
    machines_release(instances=[machine], now=NOW)
    for second in range(301):
        look(second)
    times = len(there.asked("terminate"))
    assert 300 / AGAIN_MAX.total_seconds() < times < 20
    there.end_refused = None
    look(301 + AGAIN_MAX.total_seconds())
    assert there.records[machine.claim]["status"] == "stopping"


def test_a_clock_that_was_set_back_does_not_hold_an_end_up(there: StubCloud, machine: Instance) -> None:
    there.end_refused = BackendError("busy", permanent=False)
    machines_release(instances=[machine], now=later(120))
    look(120)
    there.end_refused = None
    look(1)
    assert there.records[machine.claim]["status"] == "stopping"


def test_an_end_that_is_not_confirmed_for_long_is_told_once_and_stands_on_fleet_with_its_age(
    there: StubCloud, machine: Instance, job: Job, settings: Any
) -> None:
    settings.END_LATE_S = 300.0
    there.end_refused = BackendError("the machine cannot be ended now", permanent=False)
    machines_release(instances=[machine], now=later(HOUR_S))
    for second in (0, 100, 200, 300):
        look(HOUR_S + second)
    assert ends_late_sweep(now=later(HOUR_S + 299)) == 0
    assert not fleet_of(team=job.team, now=later(HOUR_S + 299)).num_end_late
    assert [ends_late_sweep(now=later(HOUR_S + second)) for second in (301, 302)] == [1, 0]
    (told,) = Event.objects.filter(kind="instance.end_late")
    assert (told.team, told.job) == (job.team, job)
    assert "asked 4 times. Last answer: the machine cannot be ended now." in told.text
    assert "It has cost $1.6254 and goes on costing $1.5000 an hour until it is." in told.text
    fleet = fleet_of(team=job.team, now=later(HOUR_S + 720))
    (line,) = fleet.held
    assert (line.ending_s, line.is_end_late, fleet.num_end_late) == (720.0, True, 1)
    assert line.cost_usd == Decimal("1.5") * 4320 / 3600


def test_an_end_on_a_cluster_that_is_not_confirmed_is_told_too(there: StubCloud, machine: Instance) -> None:
    Instance.objects.filter(pk=machine.pk).update(backend="slurm", status="terminating", offer=None)
    assert ends_late_sweep(now=later(301)) == 1


def test_a_machine_that_lives_on_after_its_end_was_believed_costs_until_its_end_and_is_told(
    there: StubCloud, machine: Instance, job: Job
) -> None:
    there.forgotten = {machine.claim}
    look(HOUR_S)
    look(HOUR_S + 61)
    there.forgotten.clear()
    assert machine_orphans_sweep(now=later(HOUR_S + 90)) == {machine.claim: "ended"}
    machine.refresh_from_db()
    assert (machine.status, machine.detail, machine.ended_at) == ("terminated", UNDEAD, later(HOUR_S + 90))
    assert Event.objects.get(kind="instance.undead").team == job.team
    there.records[machine.claim] |= {"status": "terminated", "ended_at": later(HOUR_S + 92).timestamp()}
    for second in (150, 210):
        assert machine_orphans_sweep(now=later(HOUR_S + second)) == {}
    machine.refresh_from_db()
    cost = instance_cost_usd(machine, start=None, end=later(9 * HOUR_S))
    assert round(cost, 9) == round(Decimal("1.5") * 3692 / 3600, 9)
    assert Event.objects.filter(kind="instance.undead").count() == 1


def test_a_machine_of_an_unknown_team_is_told_to_every_team_and_stands_on_fleet(there: StubCloud) -> None:
    teams = [make_team(), make_team()]
    there.add("stray", tags={"team": "not-known"})
    assert machine_orphans_sweep(now=NOW) == {"stray": "ended"}
    (orphan,) = Orphan.objects.all()
    assert (orphan.team, orphan.claim, orphan.num_asked, orphan.ended_at) == (None, "stray", 1, None)
    assert {event.team for event in Event.objects.filter(kind="orphan.ended")} == set(teams)
    assert fleet_of(team=teams[1], now=NOW).orphans == [orphan]
    machine_orphans_sweep(now=later(60))
    orphan.refresh_from_db()
    assert (orphan.num_asked, orphan.ended_at) == (1, later(60))
    assert fleet_of(team=teams[0], now=later(25 * HOUR_S)).orphans == []
    assert Event.objects.filter(kind="orphan.ended").count() == 2
