"""What a change of machines was to lead to is stored with it, and what it led to is measured when it is over."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from jobs import plan_outcomes
from jobs.models import Decision, Event, Instance, Job, PlanPoint
from jobs.planning import outcomes_measure
from jobs.scheduler.plan_outcomes import Led, plan_outcome
from jobs.scheduler.procurement import Standing, machines_proposal
from jobs.scheduler.proposal import Effect, Proposal
from jobs.selectors.decisions import rule_record
from jobs.services.decisions import decision_propose
from tests.factories import NOW, make_cast, make_job
from tests.pages.world import signed_in
from tests.planning.test_procurement import SETTINGS, facts, wish

HOUR = 3600.0
COST, FINISH = Effect(4.0, 3.5, 4.6), Effect(5 * HOUR, 4.5 * HOUR, 5.6 * HOUR)
EXPECTED = {"cost_usd": COST.as_json(), "finish_s": FINISH.as_json()}


def after(hours: float) -> dt.datetime:
    return NOW + dt.timedelta(hours=hours)


def test_what_is_proposed_carries_cost_and_finish_with_their_ranges() -> None:
    proposal = machines_proposal(facts(), wish(2), Standing(), SETTINGS)
    assert proposal is not None
    expected = proposal.expected_json()
    assert expected["cost_usd"] == {"expected": 20.0, "low": 15.0, "high": 25.0}
    assert expected["finish_s"] == {"expected": 9000.0, "low": 8000.0, "high": 10_000.0}


@pytest.mark.parametrize(
    ("led", "verdict"),
    [
        (Led(HOUR, 1.0, 4.5, 5.5 * HOUR), "as planned"),
        (Led(HOUR, 1.0, 3.4, 5.5 * HOUR), "better"),
        (Led(HOUR, 1.0, 3.4, 5.7 * HOUR), "worse"),
        (Led(HOUR, 1.0, 4.7, 5.0 * HOUR, "succeeded"), "worse"),
        (Led(HOUR, 1.0, None, None), "no data"),
        (Led(HOUR, 1.0, 4.0, 5.0 * HOUR, "cancelled"), "no data"),
    ],
)
def test_the_verdict_goes_by_the_ranges_of_the_plan(led: Led, verdict: str) -> None:
    found = plan_outcome(EXPECTED, led)
    assert found["verdict"] == verdict
    assert found["sentence"].startswith("In force for 60 min, at $1.00")


def test_without_a_plan_only_what_it_cost_is_told() -> None:
    found = plan_outcome({"confidence": 0.5}, Led(HOUR, 1.0, 4.0, HOUR))
    assert (found["verdict"], "cost_usd" in found) == ("no data", False)


def order(job: Job, hours: float, *, spent: float, **fields: Any) -> Decision:
    """A decision of the planner that is in force."""
    given: dict[str, Any] = {
        "rule": "planner", "kind": "procure", "subject": "machines", "direction": "forward", "sentence": "Hold 2 spot.",
        "args": {"spot": 2, "on_demand": 0}, "evidence": {"spent_usd": spent}, "cost_usd": COST, "finish_s": FINISH,
    }  # fmt: skip
    decision = decision_propose(job=job, proposal=Proposal(**given | fields), now=after(hours))
    assert decision is not None
    Decision.objects.filter(pk=decision.pk).update(status="succeeded", executed_at=after(hours), applied_step=10)
    decision.refresh_from_db()
    return decision


def held(job: Job) -> Instance:
    """A machine at 2 USD an hour from NOW on."""
    return Instance.objects.create(
        team=job.team, job=job, backend="local", claim="m", kind="spot", status="running", price_usd_per_hour=2,
        num_gpus=1, created_at=NOW, status_at=NOW, started_at=NOW,
    )  # fmt: skip


def point(job: Job, hours: float, *, total: float, finish_h: float) -> None:
    PlanPoint.objects.create(
        job=job, at=after(hours), step=1, spent_usd=0, spot=2, on_demand=0, cost_usd=total, finish_at=after(finish_h)
    )


@pytest.mark.django_db
def test_a_change_is_measured_by_the_newest_plan_before_the_next_one() -> None:
    job = make_job(status="running")
    held(job)
    first = order(job, 1.0, spent=2.0)
    point(job, 1.0, total=9.9, finish_h=9.9)  # the plan of its own moment says nothing of what it led to
    assert outcomes_measure(now=after(3)) == 0, "it is in force"
    point(job, 2.0, total=6.4, finish_h=5.8)
    order(job, 2.5, spent=5.0)
    point(job, 2.6, total=9.9, finish_h=9.9)  # that of the next change
    assert outcomes_measure(now=after(3)) == 1
    first.refresh_from_db()
    found = first.outcome
    assert (found["verdict"], found["used_usd"], found["lasted_s"]) == ("as planned", 3.0, 1.5 * HOUR)
    assert (found["cost_usd"], found["finish_s"]) == (pytest.approx(4.4), 4.8 * HOUR)
    assert "is now expected to come to $4.40 ($4.00 expected, 80 %: $3.50 to $4.60)" in found["sentence"]
    assert Event.objects.filter(job=job, kind="decision.measured").count() == 1
    assert outcomes_measure(now=after(4)) == 0, "once"


@pytest.mark.django_db
def test_where_no_plan_was_kept_in_between_the_next_changes_own_counts() -> None:
    job = make_job(status="running")
    first = order(job, 1.0, spent=2.0)
    order(job, 2.0, spent=5.0)  # 4 USD more, done 5 h later
    outcomes_measure(now=after(3))
    first.refresh_from_db()
    assert (first.outcome["cost_usd"], first.outcome["finish_s"]) == (pytest.approx(7.0), 6 * HOUR)
    assert first.outcome["verdict"] == "worse"


@pytest.mark.django_db
def test_the_last_change_is_measured_by_what_the_job_came_to_once_its_machines_have_ended() -> None:
    job = make_job(status="running")
    machine = held(job)
    last = order(job, 1.0, spent=2.0)
    Job.objects.filter(pk=job.pk).update(status="succeeded", ended_at=after(3.0))
    assert outcomes_measure(now=after(3.1)) == 0, "a machine still costs"
    Instance.objects.filter(pk=machine.pk).update(status="terminated", ended_at=after(3.25))
    assert outcomes_measure(now=after(4)) == 1
    last.refresh_from_db()
    assert (last.outcome["cost_usd"], last.outcome["finish_s"]) == (4.5, 2 * HOUR)
    assert (last.outcome["verdict"], last.outcome["ended"]) == ("better", "succeeded")


@pytest.mark.django_db
def test_changes_that_cannot_be_measured_yet_do_not_stand_in_the_way_of_those_that_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plan_outcomes, "AT_ONCE", 2)
    stuck = make_job(status="running")
    machine = held(stuck)  # its end is never confirmed
    orders = [order(stuck, hours, spent=2.0) for hours in (1.0, 4.0, 5.0)]
    Job.objects.filter(pk=stuck.pk).update(status="succeeded", ended_at=after(3.0))
    job = make_job(status="running")
    over = order(job, 1.0, spent=0.0)
    order(job, 2.0, spent=0.0)
    assert outcomes_measure(now=after(6)) == 1
    over.refresh_from_db()
    assert over.outcome_at is not None
    Instance.objects.filter(pk=machine.pk).update(status="terminated", ended_at=after(6.5))
    assert (outcomes_measure(now=after(7)), outcomes_measure(now=after(7))) == (2, 1)
    assert all(Decision.objects.get(pk=one.pk).outcome_at is not None for one in orders)


@pytest.mark.django_db
def test_page_and_record_of_the_planner_speak_of_its_plan() -> None:
    cast = make_cast()
    job = make_job(cast.team, status="running")
    first = order(job, 1.0, spent=2.0)
    client = signed_in(cast.viewer)
    page = client.get(f"/decisions/{first.uuid}/").content.decode()
    assert "Cost from then to the end" in page
    assert "80 % interval" in page
    assert "measured against this plan when the next change is in force" in page
    assert "measured after its window" not in client.get(f"/jobs/{job.uuid}/").content.decode()
    point(job, 1.5, total=6.4, finish_h=5.8)
    order(job, 2.0, spent=5.0)
    outcomes_measure(now=after(3))
    page = client.get(f"/decisions/{first.uuid}/").content.decode()
    assert "1 of 1 kept to their plan" in page
    assert "is now expected to come to" in page
    assert "is now expected to come to" in client.get(f"/jobs/{job.uuid}/").content.decode()
    assert rule_record(team=cast.team, job=job).num_measured == 0, "no data decision was measured"
