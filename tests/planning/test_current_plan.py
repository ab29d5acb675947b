"""What the planner last said of a job, over REST and on the command line."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
from django.test import Client

from jobs.epoch import plans_tick
from jobs.models import Job, PlanState
from tests.factories import NOW, Cast, make_cast, make_job
from tests.planning.world import hold, make_market, planned_job, train
from trainer_client.cli import jobs as cli

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    return make_cast()


def told(cast: Cast, job: Job) -> dict[str, Any]:
    client = Client()
    client.force_login(cast.viewer)
    answer = client.get(f"/api/v1/jobs/{job.uuid}/")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_the_plan_in_force_stands_in_the_job(cast: Cast) -> None:
    spot = make_market(spot=4)
    job = planned_job(cast.team, nodes=(1, 2), hours=8.0)
    hold(job, spot, 1)
    train(job, workers=1, steps=100, step_time_s=20.0)
    assert told(cast, job)["current_plan"] is None, "not planned yet"
    plans_tick(now=NOW)
    state, plan = PlanState.objects.get(job=job), told(cast, job)["current_plan"]
    assert plan["held"] == {"spot": 1, "on_demand": 0}
    assert plan["target"] == state.plan["target"]
    assert plan["sentence"] == state.plan["sentence"]
    assert 0 <= plan["chance"] <= 1
    assert plan["finish_at"]["low"] <= plan["finish_at"]["expected"] <= plan["finish_at"]["high"]
    assert plan["cost_usd"]["expected"] == pytest.approx(state.plan["cost_usd"]["expected"])
    assert plan["last_safe_at"]
    assert plan["spot"]["available"] == 4
    assert plan["planned_at"] == state.plan["at"]
    for status in ("paused", "succeeded"):
        Job.objects.filter(pk=job.pk).update(status=status)
        assert told(cast, job)["current_plan"] is None, "nothing is planned then"


def test_while_the_first_epoch_has_not_stored_its_plan_there_is_none(cast: Cast) -> None:
    job = planned_job(cast.team)
    PlanState.objects.create(job=job, due_at=NOW, planned_at=NOW)
    assert told(cast, job)["current_plan"] is None


def test_a_job_of_fixed_size_and_a_draft_have_no_plan_in_force(cast: Cast) -> None:
    assert told(cast, make_job(cast.team, status="running"))["current_plan"] is None
    assert told(cast, planned_job(cast.team, status="draft"))["current_plan"] is None


def test_a_plan_without_a_pace_leaves_out_what_cannot_be_said(cast: Cast) -> None:
    make_market(spot=0)
    job = planned_job(cast.team, step_time_s=None)
    plans_tick(now=NOW)
    plan = told(cast, job)["current_plan"]
    assert plan["target"] == {"spot": 0, "on_demand": 0}
    assert plan["finish_at"] is None
    assert plan["cost_usd"] is None


def test_show_tells_the_plan(cast: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    make_market(spot=4)
    job = planned_job(cast.team, hours=8.0)
    plans_tick(now=NOW)
    answer = told(cast, job)

    class Answers:
        def get(self, path: str) -> dict[str, Any]:
            return answer

    monkeypatch.setattr(cli, "job_id", lambda connection, name: name)
    _, text = cli.show(Answers(), argparse.Namespace(job="x"))  # type: ignore[arg-type]
    plan = answer["current_plan"]
    assert plan["sentence"] in text
    assert f"${plan['cost_usd']['expected']:.2f}" in text
    assert f"{plan['chance']:.0%}" in text
