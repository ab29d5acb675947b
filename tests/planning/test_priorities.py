"""Who comes first in an epoch: effective priorities, machines kept for who waits, and jobs that make room."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from forecasting.outlook import Band
from jobs.epoch import plans_tick
from jobs.models import Attempt, Command, Decision, Instance, Job, Offer, PlanState, SignalState, Snapshot, Team
from jobs.scheduler.completion import Completion
from jobs.selectors.jobs import job_lines
from jobs.services.approvals import decision_approve, decision_reject
from jobs.services.boosts import job_boost
from jobs.services.decisions import decision_executing
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel
from jobs.services.machines import machine_gone
from jobs.services.plans import plan_ask
from jobs.services.rules import rule_set
from tests.factories import NOW, Cast, make_cast
from tests.planning.world import hold, make_market, planned_job, train

pytestmark = pytest.mark.django_db


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def state(job: Job) -> PlanState:
    return PlanState.objects.get(job=job)


def fitted(
    job: Job, *, ends: tuple[float, float, float], target: float | None = 1.0, chance: float | None = 0.95
) -> None:
    found = Completion(
        job.current_step, job.goal_steps, "power", 1.2, target, Band(*ends), chance, Band(0.02, 0.01, 0.03), 90
    )
    SignalState.objects.update_or_create(job=job, defaults={"completion": found.as_json()})


@pytest.fixture
def market() -> Offer:
    return make_market(spot=8, past=[8] * 100)


@pytest.fixture
def cast(market: Offer) -> Cast:
    """A team of four GPUs."""
    cast = make_cast()
    Team.objects.filter(pk=cast.team.pk).update(max_gpus=4)
    return cast


def holder(cast: Cast, market: Offer, *, hours: float | None = 40.0, steps: int = 300, **fields: Any) -> Job:
    """A job that trains on all four machines of the team and has a snapshot."""
    job = planned_job(cast.team, hours=hours, **fields)
    hold(job, market, 4, since=later(-6000))
    attempt = train(job, workers=4, steps=steps, step_time_s=20.0)
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["resize"])
    Snapshot.objects.create(
        job=job, attempt=attempt, name=f"step-{steps - 30}", kind="gradient", step=steps - 30, world_size=4, status="verified",
        created_at=NOW, status_at=NOW,
    )  # fmt: skip
    PlanState.objects.create(job=job, due_at=later(10_000), planned_at=NOW, changed_at=later(-6000))
    return job


def rooms() -> list[Decision]:
    return list(Decision.objects.filter(kind="preempt_job").order_by("id"))


def test_a_target_that_is_nearly_sure_shortens_the_work_and_the_doubt_widens_its_range(market: Offer) -> None:
    job, other = planned_job(hours=40.0), planned_job(hours=40.0)
    for one in (job, other):
        hold(one, market, 4, since=later(-6000))
        train(one, workers=4, steps=300, step_time_s=20.0)
    fitted(job, ends=(500.0, 420.0, 600.0))
    plans_tick(now=NOW)
    plan, whole = state(job).plan, state(other).plan
    assert (plan["steps_left"], whole["steps_left"]) == (300, 600)
    assert plan["cost_usd"]["expected"] < whole["cost_usd"]["expected"]


def test_the_order_of_an_epoch_is_that_of_the_effective_priority_and_its_parts_are_kept(cast: Cast) -> None:
    calm = planned_job(cast.team, nodes=(4, 4), hours=12.0)
    tight = planned_job(cast.team, nodes=(4, 4), hours=5.6)
    plans_tick(now=NOW)
    assert Command.objects.get(kind="procure").job == tight
    assert state(calm).waits_for == "team quota: 4 of 4 GPUs are with other jobs"
    parts = state(tight).plan["priority"]
    assert parts["slack"] > 2
    assert parts["effective"] == state(tight).priority == pytest.approx(sum(
        parts[name] for name in ("file", "boost", "completion", "improvement", "slack")
    ))  # fmt: skip
    job_boost(job=calm, points=5, reason="The release waits for it.", now=later(5), actor=SYSTEM)
    assert state(calm).due_at == later(5)
    plans_tick(now=later(6))
    (line,) = job_lines(jobs=[calm], now=later(6))
    assert line.place == 1
    assert line.priority is not None
    assert line.priority["boost"] == 5


def test_one_that_cannot_start_has_the_cheapest_of_those_behind_it_asked_to_make_room(
    cast: Cast, market: Offer
) -> None:
    low = holder(cast, market)
    high = planned_job(cast.team, nodes=(2, 2), hours=6.0, priority=10)
    plans_tick(now=NOW)
    (decision,) = rooms()
    assert (decision.job, decision.status) == (low, "proposed")
    assert (decision.args["spot"], decision.args["on_demand"]) == (2, 0)
    assert decision.args["for"] == str(high.uuid)
    assert f"Make room for {high.name}" in decision.sentence
    assert float(decision.price_usd) > 0
    plans_tick(now=later(301))
    assert rooms() == [decision], "it stands; the same is not asked twice"
    call_command("replay_decision", str(decision))  # raises where the same facts give another answer now
    words = f"team quota: 4 of 4 GPUs are with other jobs; {low.name} is asked to make room ({decision})"
    assert state(high).waits_for == words


def test_the_one_that_made_room_says_for_whom_and_does_not_take_it_back(cast: Cast, market: Offer) -> None:
    low = holder(cast, market, hours=3.7)
    high = planned_job(cast.team, nodes=(2, 2), hours=40.0, priority=10)
    plans_tick(now=NOW)
    (decision,) = rooms()
    decision_approve(decision=decision, now=later(5), user=cast.approver, seen_args=decision.args)
    assert Command.objects.get(kind="preempt_job").job == low
    decision_executing(decision=decision, now=later(6))
    plans_tick(now=later(7))
    assert len(rooms()) == 1, "what is on its way out is counted"
    assert not Command.objects.filter(job=high).exclude(kind="launch").exists(), (
        "a quota is free only when machines have stopped"
    )

    Command.objects.filter(kind="preempt_job").update(status="done")
    Decision.objects.filter(pk=decision.pk).update(status="succeeded", status_at=later(20))
    for machine in Instance.objects.filter(job=low)[:2]:
        Instance.objects.filter(pk=machine.pk).update(status="terminating")
        machine.refresh_from_db()
        machine_gone(instance=machine, now=later(20))
    assert state(high).due_at == later(20), "room for it: it is planned at once"
    plan_ask(job=low, now=later(20), why="test")
    plans_tick(now=later(21))
    assert Command.objects.get(job=high, kind="procure").args["spot"] == 2
    assert not Command.objects.filter(job=low, kind="procure").exists()
    assert state(low).waits_for.startswith(f"gave way to {high.name} ({decision}), back ")

    hold(high, market, 2, since=later(25))
    Command.objects.filter(job=high).update(status="done")
    job_cancel(job=high, now=later(900), actor=SYSTEM)
    for machine in Instance.objects.filter(job=high):
        machine_gone(instance=machine, now=later(901))
    plans_tick(now=later(1500))
    assert state(low).plan["gave_way"] is None


def test_a_running_job_that_would_miss_its_deadline_gets_room_and_one_that_makes_it_does_not(
    cast: Cast, market: Offer
) -> None:
    low = planned_job(cast.team, hours=None)
    hold(low, market, 2, since=later(-6000))
    attempt = train(low, workers=2, steps=300, step_time_s=20.0)
    Attempt.objects.filter(pk=attempt.pk).update(capabilities=["resize"])
    Snapshot.objects.create(
        job=low,
        attempt=attempt,
        name="s",
        kind="gradient",
        step=290,
        world_size=2,
        status="verified",
        created_at=NOW,
        status_at=NOW,
    )
    high = planned_job(cast.team, hours=2.6, priority=10)
    hold(high, market, 2, since=later(-6000))
    train(high, workers=2, steps=300, step_time_s=20.0)
    plans_tick(now=NOW)
    (decision,) = rooms()
    assert (decision.job, decision.args["spot"]) == (low, 1)
    assert "it would miss its deadline" in decision.sentence
    Job.objects.filter(pk=high.pk).update(deadline=later(9 * 3600))
    plan_ask(job=high, now=later(10), why="test")
    plans_tick(now=later(11))
    decision.refresh_from_db()
    assert (decision.status, decision.failure) == ("expired", "The job that it was to make room for needs it no more.")


def test_who_holds_machines_is_read_once_however_many_jobs_of_however_many_teams_need_room() -> None:
    wide = make_market(spot=40, past=[40] * 100)

    def team_that_waits(num: int) -> Cast:
        """Nobody has a snapshot to fall back on: all are looked at, and nobody is asked."""
        cast = make_cast()
        Team.objects.filter(pk=cast.team.pk).update(max_gpus=4)
        holder(cast, wide)
        Snapshot.objects.all().delete()
        waiting(cast, num)
        return cast

    def waiting(cast: Cast, num: int) -> None:
        for _ in range(num):
            planned_job(cast.team, nodes=(2, 2), hours=40.0, priority=10)

    def queries(at: float) -> int:
        plans_tick(now=later(at))  # what is new is ordered, or found to wait
        with CaptureQueriesContext(connection) as captured:
            assert plans_tick(now=later(at + 400)) == []
        assert rooms() == []
        assert any("jobs_snapshot" in query["sql"] for query in captured), "holders were looked at"
        return len(captured)

    first = team_that_waits(1)
    few = queries(0)
    waiting(first, 2)
    for _ in range(2):
        team_that_waits(3)
    assert queries(1000) == few


def test_a_rule_may_let_jobs_make_room_by_itself_within_its_limit(cast: Cast, market: Offer) -> None:
    low = holder(cast, market)
    planned_job(cast.team, nodes=(2, 2), hours=6.0, priority=10)
    limits = {"max_usd": 0.01}
    rule_set(team=cast.team, kind="preempt_job", autonomy="auto_within_limits", limits=limits, now=NOW, actor=SYSTEM)
    plans_tick(now=NOW)
    (decision,) = rooms()
    assert "the limit is $0.01" in decision.autonomy_reason
    rule_set(team=cast.team, kind="preempt_job", autonomy="auto", now=NOW, actor=SYSTEM)
    Decision.objects.all().delete()
    plans_tick(now=later(301))
    assert [(d.job, d.status) for d in rooms()] == [(low, "approved")]
    assert Command.objects.get(kind="preempt_job").args["spot"] == 2


@pytest.mark.parametrize("reason", ["protected", "no snapshot", "close", "young", "refused"])
def test_nobody_is_stopped_without_good_reason(cast: Cast, market: Offer, reason: str) -> None:
    low = holder(cast, market, steps=895 if reason == "protected" else 300)
    if reason == "protected":
        plan_ask(job=low, now=NOW, why="test")
        plans_tick(now=NOW)
        assert state(low).plan["priority"]["is_protected"]
    if reason == "no snapshot":
        Snapshot.objects.all().delete()
    if reason == "young":
        Attempt.objects.update(running_at=later(-60))
    planned_job(cast.team, nodes=(2, 2), hours=40.0, priority=1 if reason == "close" else 10)
    plans_tick(now=later(1))
    if reason != "refused":
        assert rooms() == []
        return
    decision_reject(decision=rooms()[0], now=later(5), user=cast.approver, reason="It is needed tonight.")
    plans_tick(now=later(301))
    assert len(rooms()) == 1


def test_scarce_spot_is_given_up_for_a_job_that_comes_first(cast: Cast, market: Offer) -> None:
    Team.objects.filter(pk=cast.team.pk).update(max_gpus=None)
    scarce = make_market(spot=4, past=[4] * 100, zone="b", price=0.5)
    Offer.objects.filter(pk=market.pk).delete()
    low = holder(cast, scarce)
    planned_job(cast.team, nodes=(3, 3), hours=40.0, priority=10, policy="only")
    plans_tick(now=NOW)
    (decision,) = rooms()
    assert (decision.job, decision.args["spot"]) == (low, 1)
    assert "there is no spot left in" in decision.sentence
