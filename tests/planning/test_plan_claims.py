"""What an epoch has taken: confirmed by what it stores, due again where it dies, and one job that fails stops no other."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import OperationalError

from jobs import epoch
from jobs.epoch import plans_tick
from jobs.models import Command, Decision, Event, Job, PlanState
from jobs.plan_parts import MAX_TRIES, together
from jobs.services.plan_claims import plans_claim
from jobs.services.plan_waits import waits_for
from jobs.services.plans import FIRST, PACE_CHANGED, plan_ask
from tests.factories import NOW, make_team
from tests.planning.world import hold, make_market, planned_job

pytestmark = pytest.mark.django_db
TAKEN = "A machine was taken."


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def state(job: Job) -> PlanState:
    return PlanState.objects.get(job=job)


def held_then_taken() -> Job:
    """A job that was given its machines and lost one of them within the time in which nothing is changed in haste."""
    offer = make_market(spot=4)
    job = planned_job(hours=7.0)
    plans_tick(now=NOW)
    order = Command.objects.get(kind="procure")
    first, *_ = hold(job, offer, order.args["spot"], since=later(5))
    Command.objects.update(status="done")
    Decision.objects.update(status="succeeded")
    first.status, first.ended_at = "terminated", later(101)
    first.save()
    return job


@pytest.mark.parametrize("calm", [None, "", PACE_CHANGED])
def test_a_machine_that_was_taken_is_replaced_at_once_whatever_the_job_was_due_for(calm: str | None) -> None:
    job = held_then_taken()
    if calm is not None:
        PlanState.objects.filter(job=job).update(due_at=later(100), why=calm)
    plan_ask(job=job, now=later(101), why=TAKEN)
    assert [d.kind for d in plans_tick(now=later(102))] == ["procure"]


def test_what_is_asked_while_an_epoch_plans_the_job_is_answered_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    job = held_then_taken()
    PlanState.objects.filter(job=job).update(due_at=later(100))
    compute = epoch.wishes

    def meanwhile(*args: Any) -> Any:
        plan_ask(job=job, now=later(101), why=TAKEN)
        return compute(*args)

    monkeypatch.setattr(epoch, "wishes", meanwhile)
    assert plans_tick(now=later(100)) == []
    assert (state(job).due_at, state(job).why, state(job).claim) == (later(101), TAKEN, None)
    monkeypatch.setattr(epoch, "wishes", compute)
    assert [d.kind for d in plans_tick(now=later(102))] == ["procure"]
    assert (state(job).due_at, state(job).why, state(job).taken) == (later(402), "", "")


def test_an_urgent_epoch_that_was_overtaken_is_made_again_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A calm epoch has read its rows before the machine was taken, and stores first; the urgent one must not count as answered."""
    job = held_then_taken()
    PlanState.objects.filter(job=job).update(due_at=later(100))
    compute, store = epoch.wishes, epoch.not_overtaken

    def slowly(*args: Any) -> Any:
        found = compute(*args)
        monkeypatch.setattr(epoch, "wishes", compute)
        plan_ask(job=job, now=later(101), why=TAKEN)
        return found

    def overtaken(planned: Any, now: dt.datetime) -> Any:
        monkeypatch.setattr(epoch, "not_overtaken", store)
        PlanState.objects.filter(job=job).update(planned_at=later(101))  # by the first
        return store(planned, now)

    monkeypatch.setattr(epoch, "wishes", slowly)
    plans_tick(now=later(100))
    monkeypatch.setattr(epoch, "not_overtaken", overtaken)
    assert plans_tick(now=later(102)) == []
    assert (state(job).due_at, state(job).taken) == (later(102), TAKEN)
    assert [d.kind for d in plans_tick(now=later(103))] == ["procure"]


def test_an_epoch_that_dies_has_its_jobs_planned_again_soon_and_for_the_same_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = held_then_taken()
    plan_ask(job=job, now=later(101), why=TAKEN)
    compute = epoch.wishes

    def killed(*_: Any) -> Any:
        raise SystemExit  # as after kill -9: nothing that follows is done

    monkeypatch.setattr(epoch, "wishes", killed)
    with pytest.raises(SystemExit):
        plans_tick(now=later(102))
    monkeypatch.setattr(epoch, "wishes", compute)
    assert plans_tick(now=later(131)) == []
    assert [d.kind for d in plans_tick(now=later(133))] == ["procure"]


def test_a_claim_that_nobody_confirms_is_due_after_its_lease_with_what_was_asked() -> None:
    make_market(spot=4)
    job = planned_job()
    claim = plans_claim(ids=[job.pk], now=NOW, every_s=300.0)
    assert claim.why == {job.pk: FIRST}
    assert plans_claim(ids=[job.pk], now=later(29), every_s=300.0).why == {}
    assert plans_claim(ids=[job.pk], now=later(31), every_s=300.0).why == {job.pk: FIRST}


def test_one_job_that_cannot_be_planned_stops_no_other_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    make_market(spot=40)
    ill, well = planned_job(name="ill"), planned_job(make_team("other"), name="well")
    facts_of = epoch.facts_of

    def poisoned(epoch_read: Any, rows: Any) -> Any:
        if rows.job.pk == ill.pk:
            raise ValueError("poison")
        return facts_of(epoch_read, rows)

    monkeypatch.setattr(epoch, "facts_of", poisoned)
    assert [d.job_id for d in plans_tick(now=NOW)] == [well.pk]
    assert (state(ill).due_at, state(ill).waits_on) == (later(30), "failed")
    assert state(ill).waits_for == "its plan failed: ValueError: poison; planned again at 12:40:30 UTC"
    waits, at = [], 0.0
    for _ in range(7):
        due = (state(ill).due_at - NOW).total_seconds()
        waits.append(due - at)
        plan_ask(job=ill, now=later(at + 1), why=PACE_CHANGED)
        assert state(ill).due_at == later(due)  # what can wait does not hurry it
        plans_tick(now=later(due))
        at = due
    assert waits == [30, 60, 120, 240, 480, 600, 600]
    event = Event.objects.get(kind="job.plan_failed")
    assert (event.job_id, "poison" in event.text) == (ill.pk, True)
    monkeypatch.setattr(epoch, "facts_of", facts_of)
    plan_ask(job=ill, now=later(at + 1), why=TAKEN)
    assert [d.job_id for d in plans_tick(now=later(at + 2))] == [ill.pk]
    assert (state(ill).num_failures, state(ill).waits_on) == (0, "machines")


@pytest.mark.parametrize("stage", ["wishes", "store"])
def test_where_only_the_work_on_all_fails_the_job_at_fault_is_found(
    monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    make_market(spot=40)
    jobs = [planned_job(make_team(f"t{i}"), hours=10.0 + i, name=f"j{i}") for i in range(7)]
    ill = jobs[4]
    wishes, store = epoch.wishes, epoch.plans_store

    def poisoned_wishes(facts: Any, *args: Any) -> Any:
        if any(abs(one.time_left_s - 14 * 3600) < 1 for one in facts):
            raise ZeroDivisionError
        return wishes(facts, *args)

    def poisoned_store(planned: Any, **args: Any) -> Any:
        if any(one.rows.job.pk == ill.pk for one in planned):
            raise ZeroDivisionError
        return store(planned=planned, **args)

    if stage == "wishes":
        monkeypatch.setattr(epoch, "wishes", poisoned_wishes)
    else:
        monkeypatch.setattr(epoch, "plans_store", poisoned_store)
    made = plans_tick(now=NOW)
    assert sorted(d.job_id for d in made) == sorted(job.pk for job in jobs if job != ill)
    assert Command.objects.filter(kind="procure").count() == 6
    assert list(PlanState.objects.filter(num_failures__gt=0).values_list("job", flat=True)) == [ill.pk]
    assert set(PlanState.objects.exclude(job=ill).values_list("due_at", flat=True)) == {later(300)}


def test_where_every_job_fails_the_halving_ends() -> None:
    calls, failed = [], {}

    def work(ids: Any) -> list[int]:
        calls.append(ids)
        raise ValueError

    assert together(work, list(range(1000)), failed) == []
    assert len(failed) == 1000
    assert len(calls) <= 2 * MAX_TRIES + 1


def test_a_database_that_is_away_is_no_jobs_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    make_market(spot=4)
    job = planned_job()

    def away(*_: Any) -> Any:
        raise OperationalError("database is locked")

    monkeypatch.setattr(epoch, "facts_of", away)
    with pytest.raises(OperationalError):
        plans_tick(now=NOW)
    assert (state(job).num_failures, state(job).taken) == (0, FIRST)
    assert later(30) <= state(job).due_at <= later(31)
    monkeypatch.undo()
    assert len(plans_tick(now=later(31))) == 1


def test_a_safe_moment_before_all_time_and_long_words_stop_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    make_market(spot=0)
    job = planned_job(policy="only", step_time_s=1e12)
    monkeypatch.setattr("jobs.services.plan_states.waits_for", lambda *args: (waits_for(*args)[0], "spot " * 200))
    plans_tick(now=NOW)
    assert state(job).num_failures == 0
    assert state(job).plan["last_safe_at"] < NOW.isoformat()
    assert len(state(job).waits_for) <= 500
    assert state(job).waits_for.endswith("spot…")
