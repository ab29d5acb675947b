"""A provider whose calls are slow: notices are seen in time all the same, and every machine has its turn."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import Any

import pytest

from jobs.models import Command, Instance, Job, Offer
from jobs.services.machines import machine_request, machines_release
from tests.factories import NOW
from tests.machines.stub import StubCloud
from tests.planning.world import hold, make_market, planned_job
from trainer_client.backends import BackendError
from workers import machine_calls
from workers import machines as watch
from workers.machines import held_rows, machines_sync, machines_watch

pytestmark = pytest.mark.django_db


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> StubCloud:
    """Each call about a machine takes 0.4 s, so that three fit into what a look may take."""
    there = StubCloud(costs_s=0.4)
    monkeypatch.setattr(watch, "cloud", lambda: there)
    monkeypatch.setattr(machine_calls, "clock", lambda: there.now_s)
    monkeypatch.setattr(machine_calls, "_waits_since", {})
    return there


@pytest.fixture
def job() -> Job:
    return planned_job(hours=40.0)


def wishes(job: Job, num: int) -> list[Instance]:
    offer = job_offer()
    return [machine_request(job=job, offer=offer, claim=f"wish-{n:02d}", now=NOW) for n in range(num)]


def job_offer() -> Offer:
    return Offer.objects.filter(is_spot=True).first() or make_market(spot=40)


def running(there: StubCloud, job: Job, num: int = 1) -> list[Instance]:
    rows = hold(job, job_offer(), num)
    for row in rows:
        Instance.objects.filter(pk=row.pk).update(provider_id=f"i-{row.claim}")
        there.add(row.claim)
    return rows


def test_a_notice_is_taken_before_any_machine_is_asked_for_and_a_look_makes_only_so_many_calls(
    slow: StubCloud, job: Job
) -> None:
    (victim,) = running(slow, job)
    wishes(job, 10)
    slow.records[victim.claim] |= {"notice_at": NOW.timestamp(), "ends_by": later(120).timestamp()}
    seen: list[bool] = []
    slow.meanwhile = lambda kind, token: seen.append(Command.objects.filter(kind="preempt").exists())
    machines_sync(rows=held_rows(), now=later(1))
    assert seen
    assert all(seen)
    assert len(slow.asked("create")) == 3, "the others at the next look"
    assert slow.now_s <= 2.0


def test_a_notice_that_comes_while_machines_are_made_is_seen_by_the_next_look(slow: StubCloud, job: Job) -> None:
    (victim,) = running(slow, job)
    wishes(job, 10)

    def notice(kind: str, token: str) -> None:
        slow.records[victim.claim] |= {"notice_at": NOW.timestamp(), "ends_by": later(120).timestamp()}

    slow.meanwhile = notice
    machines_sync(rows=held_rows(), now=later(1))
    assert slow.now_s <= 2.0
    slow.meanwhile = lambda kind, token: None
    machines_sync(rows=held_rows(), now=later(2))
    victim.refresh_from_db()
    assert victim.notice_at == NOW


def test_every_wish_and_every_end_has_its_turn_once_before_any_has_a_second(slow: StubCloud, job: Job) -> None:
    going = running(slow, job, 4)
    machines_release(instances=going, now=NOW)
    asked = {row.claim for row in [*going, *wishes(job, 7)]}
    slow.end_refused = BackendError("busy", permanent=False)
    for n in range(4):
        machines_sync(rows=held_rows(), now=later(1 + n / 100))
    calls = [token for kind, token in slow.calls if kind in ("create", "terminate")]
    assert set(calls) == asked
    assert len(calls) == len(asked)


def test_machines_that_the_list_leaves_out_do_not_keep_others_from_being_made(slow: StubCloud, job: Job) -> None:
    hidden = running(slow, job, 8)
    slow.unlisted = {row.claim for row in hidden}
    wishes(job, 3)
    machines_sync(rows=held_rows(), now=later(1))
    assert (len(slow.asked("describe")), len(slow.asked("create"))) == (3, 3)
    for n in (2, 3):
        machines_sync(rows=held_rows(), now=later(n))
    assert set(slow.asked("describe")) == slow.unlisted


def test_a_wish_that_is_taken_back_while_others_have_their_turn_is_not_asked_for(slow: StubCloud, job: Job) -> None:
    rows = wishes(job, 2)

    def take_back(kind: str, token: str) -> None:
        machines_release(instances=[Instance.objects.get(pk=rows[1].pk)], now=later(1))

    slow.meanwhile = take_back
    machines_sync(rows=held_rows(), now=later(1))
    assert slow.asked("create") == [rows[0].claim]


def test_one_call_is_made_however_slow_it_is(slow: StubCloud, job: Job) -> None:
    slow.costs_s = 10.0
    wishes(job, 3)
    for n in range(3):
        machines_watch(now=later(n))
    assert slow.asked("create") == ["wish-00", "wish-01", "wish-02"]


def test_the_clock_looks_on_while_a_call_is_waited_for(
    slow: StubCloud, job: Job, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MARKET = "seed=7"
    monkeypatch.setattr(watch, "market_look", lambda now: None)
    seconds = itertools.count(1)
    monkeypatch.setattr("django.utils.timezone.now", lambda: later(next(seconds)))
    (victim,) = running(slow, job)
    wishes(job, 2)
    looks: list[bool] = []

    def tick_meanwhile(kind: str, token: str) -> None:
        slow.records[victim.claim] |= {"notice_at": NOW.timestamp(), "ends_by": later(120).timestamp()}
        watch.machines()
        looks.append(Instance.objects.get(pk=victim.pk).notice_at == NOW)

    slow.meanwhile = tick_meanwhile
    watch.machines()
    assert looks == [True, True]
    assert slow.asked("create") == ["wish-00", "wish-01"], "calls are made by one look at a time"
    assert not watch._looking.locked()
    assert not watch._calling.locked()
