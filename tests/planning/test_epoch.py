"""The epoch: from what the market shows to orders for machines."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs import epoch
from jobs.epoch import plans_tick
from jobs.models import Command, Decision, Job, PlanPoint, PlanState
from jobs.plan_facts import facts_of
from jobs.services.plans import plan_ask
from tests.factories import NOW, make_team
from tests.planning.world import hold, make_market, planned_job, quote, train

pytestmark = pytest.mark.django_db


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)


def test_spot_that_is_to_be_had_is_ordered_by_rule_and_the_plan_says_why() -> None:
    make_market(spot=4)
    job = planned_job()
    made = plans_tick(now=NOW)
    assert [(d.kind, d.status) for d in made] == [("procure", "approved")]
    command = Command.objects.get(kind="procure")
    assert command.args["spot"] >= 1
    assert command.args["on_demand"] == 0
    state = PlanState.objects.get(job=job)
    assert state.plan["target"] == {"spot": command.args["spot"], "on_demand": 0}
    assert state.plan["chance"] is not None
    assert state.plan["cost_usd"]["low"] <= state.plan["cost_usd"]["expected"] <= state.plan["cost_usd"]["high"]
    assert PlanPoint.objects.filter(job=job).count() == 1


def test_nothing_is_planned_before_its_time_unless_somebody_asks() -> None:
    make_market(spot=4)
    job = planned_job()
    plans_tick(now=NOW)
    Command.objects.filter(kind="procure").update(status="done")
    assert plans_tick(now=later(10)) == []
    assert PlanState.objects.get(job=job).planned_at == NOW
    plan_ask(job=job, now=later(11), why="a machine was taken")
    plans_tick(now=later(12))
    assert PlanState.objects.get(job=job).planned_at == later(12)


def test_without_spot_and_time_in_hand_a_job_waits_and_says_for_what() -> None:
    make_market(spot=0)
    job = planned_job(hours=40.0)
    assert plans_tick(now=NOW) == []
    assert PlanState.objects.get(job=job).waits_for == "waits for spot in a/sim-1x: 0 of 1"


def test_at_the_last_safe_moment_on_demand_is_asked_for_with_what_the_person_needs() -> None:
    make_market(spot=0)
    job = planned_job(hours=5.2)
    decision = next(d for d in plans_tick(now=NOW) if d.kind == "switch_to_on_demand")
    assert decision.status == "proposed"
    assert decision.args["on_demand"] == 4
    assert float(decision.price_usd) >= 4 * 3 * 5
    told = decision.evidence
    assert told["if_yes"]["chance"] > told["if_no"]["chance"]
    assert float(decision.waiting_usd_per_hour) > 0
    assert decision.expires_at > NOW
    assert PlanState.objects.get(job=job).waits_for == f"waits for an approval: {decision}"
    assert not Command.objects.filter(kind="switch_to_on_demand").exists()


def test_an_ask_stands_until_spot_returns_and_then_withdraws_itself() -> None:
    offer = make_market(spot=0)
    job = planned_job(hours=5.2)
    plans_tick(now=NOW)
    assert plans_tick(now=later(301)) == []
    assert Decision.objects.filter(kind="switch_to_on_demand").count() == 1
    quote(offer, at=later(400), spot=4)
    Job.objects.filter(pk=job.pk).update(deadline=later(20 * 3600))
    plans_tick(now=later(620))
    decision = Decision.objects.get(kind="switch_to_on_demand")
    assert decision.status == "expired"
    assert "Spot is back: 4 of 4" in decision.failure


def test_the_number_of_queries_does_not_grow_with_the_jobs() -> None:
    offer, team = make_market(spot=0), make_team()

    def two_jobs() -> None:
        """One that waits, and one that trains on machines and has had others."""
        planned_job(team, hours=40.0)
        job = planned_job(team, hours=40.0, policy="only")
        hold(job, offer, 2)
        hold(job, offer, 2, ended_at=NOW)
        job.instances.filter(ended_at=NOW).update(status="terminated")
        train(job, workers=2, steps=100, step_time_s=20.0)

    two_jobs()
    plans_tick(now=NOW)

    def queries(at: float) -> int:
        with CaptureQueriesContext(
            connection,
        ) as captured:
            assert plans_tick(now=later(at)) == []
        return len(captured)

    few = queries(400)
    for _ in range(6):
        two_jobs()
    plans_tick(now=later(800))
    assert queries(1200) == few


def test_a_job_of_another_backend_is_left_to_its_cluster() -> None:
    make_market(spot=4)
    job = planned_job()
    Job.objects.filter(pk=job.pk).update(backend="slurm")
    assert plans_tick(now=NOW) == []
    assert not PlanState.objects.exists()


def test_an_epoch_that_was_overtaken_by_another_orders_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is slow: while it computes, the job is due again and a second one plans and stores."""
    make_market(spot=4)
    job = planned_job()
    compute = epoch.wishes

    def slowly(*args: Any) -> Any:
        monkeypatch.setattr(epoch, "wishes", compute)
        plan_ask(job=job, now=later(5), why="a machine was taken")
        assert [d.kind for d in plans_tick(now=later(6))] == ["procure"]
        return compute(*args)

    monkeypatch.setattr(epoch, "wishes", slowly)
    assert plans_tick(now=NOW) == []
    assert Command.objects.filter(kind="procure").count() == 1
    assert PlanState.objects.get(job=job).planned_at == later(6)


@pytest.mark.parametrize(
    ("run", "capabilities", "restarts"),
    [("python train.py", [], True), ("python train.py", ["resize"], False), ("", [], False)],
)
def test_it_is_known_whose_work_a_change_of_machines_throws_back(
    run: str, capabilities: list[str], restarts: bool
) -> None:
    offer = make_market(spot=4)
    job = planned_job(status="running")
    Job.objects.filter(pk=job.pk).update(config={**job.config, **({"run": run} if run else {})})
    hold(job, offer, 1)
    attempt = train(job, workers=1, steps=50, step_time_s=20.0)
    type(attempt).objects.filter(pk=attempt.pk).update(capabilities=capabilities)
    job.refresh_from_db()
    seen = epoch.epoch_read(now=NOW, jobs=[job])
    rows = seen.rows[job.pk]
    standing = epoch.standing_of(seen, rows, facts_of(seen, rows), is_urgent=False)
    assert (standing.spot, standing.restarts) == (1, restarts)
