"""Before a planned job is started: its plan in the form, over REST, and nothing of it kept; after its end: the report."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.epoch import plans_tick
from jobs.models import Job
from jobs.previews import job_preview
from jobs.selectors.job_report import job_report
from tests.factories import NOW, make_cast, make_dataset, make_job
from tests.planning.world import hold, make_market, planned_job, train

pytestmark = pytest.mark.django_db


def test_a_preview_has_the_planners_numbers_and_changes_nothing() -> None:
    make_market(spot=4)
    job = planned_job(hours=8.0, budget_usd="100.00")
    plan = job_preview(job=job, now=NOW)
    assert plan.is_planned
    assert plan.cost_usd is not None
    assert (plan.cost_low_usd or 1e9) <= plan.cost_usd <= (plan.cost_high_usd or 0)
    assert plan.deadline_chance is not None
    assert plan.last_safe_at is not None
    assert plan.first_spot
    assert plan.within_budget is True
    assert not job.decisions.exists()
    assert not hasattr(job, "plan_state")


def test_a_job_of_a_fixed_size_keeps_its_plan_by_earlier_paces() -> None:
    plan = job_preview(job=make_job(status="draft"), now=NOW)
    assert not plan.is_planned
    assert plan.cost_low_usd is None


def test_the_form_shows_a_plan_as_it_is_filled_in_and_creates_a_planned_job(settings: Any) -> None:
    settings.MARKET = "seed=1"
    cast = make_cast()
    make_market(spot=4, now=timezone.now())
    dataset = make_dataset(cast.team, 1)
    twin = planned_job(cast.team, step_time_s=None, hours=None, dataset=dataset)
    train(twin, workers=2, steps=50, step_time_s=10.0)
    client = Client()
    client.force_login(cast.operator)
    deadline = timezone.localtime() + dt.timedelta(hours=8)
    page = client.get(reverse("job_new"))
    initial = {name: page.context["form"][name].value() for name in page.context["form"].fields}
    form = {k: v for k, v in initial.items() if v is not None} | {
        "name": "planned-one", "dataset": str(dataset.uuid), "model": "tiny:1m", "goal_steps": "600",
        "deadline": deadline.strftime("%Y-%m-%dT%H:%M"), "num_workers": "4", "min_workers": "2", "spot_policy": "prefer",
        "backend": "local",
    }  # fmt: skip
    before = Job.objects.count()
    shown = client.get(reverse("job_plan_live"), form).content.decode()
    assert "chance to make the deadline" in shown
    assert "On-demand alone would make it until" in shown
    assert Job.objects.count() == before
    assert client.post(reverse("job_new"), form | {"draft": "1"}).status_code == 302
    made = Job.objects.get(name="planned-one")
    assert made.config["resources"] == {"spot_policy": "prefer", "nodes": {"min": 2, "max": 4}}
    assert "by the planner, on the market of now" in client.get(reverse("job", args=[made.uuid])).content.decode()


def test_the_report_of_a_planned_job_has_its_cost_by_kind_and_the_baselines() -> None:
    offer = make_market(spot=4, past=[4] * 200)
    job = planned_job(hours=8.0, budget_usd="50.00")
    plans_tick(now=NOW)
    end = NOW + dt.timedelta(hours=5)
    hold(job, offer, 4, ended_at=end)
    Job.objects.filter(pk=job.pk).update(status="succeeded", ended_at=end, current_step=900)
    job.refresh_from_db()
    report = job_report(job=job, now=end)
    assert report["cost"]["total_usd"] == pytest.approx(20.0)
    assert report["cost"]["on_demand_usd"] == 0
    costs = {line["policy"]: line["cost_usd"] for line in report["baselines"]}
    assert costs["OnDemandOnly"] > report["cost"]["total_usd"]
    assert set(costs) == {"OnDemandOnly", "SpotFirst", "UniformProgress"}


def test_the_report_of_another_job_has_no_baselines() -> None:
    job = make_job(status="draft")
    assert job_report(job=job, now=NOW)["baselines"] == []
