"""Before a planned job is started: its plan in the form, over REST, and nothing of it kept; after its end: the report."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.epoch import plans_tick
from jobs.models import Job, Offer, PlanState, Team
from jobs.previews import job_preview
from jobs.selectors.job_report import job_report
from tests.api.http import client_for
from tests.factories import NOW, make_cast, make_dataset, make_job, make_team
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


def held_by_another(of: int, held: int) -> tuple[Job, Offer]:
    """A draft of a team that may hold `of` GPUs, of which another job has `held`."""
    offer = make_market(spot=8, past=[8] * 200)
    team = make_team()
    Team.objects.filter(pk=team.pk).update(max_gpus=of)
    team.refresh_from_db()
    hold(planned_job(team, hours=40.0, priority=50), offer, held)
    return planned_job(team, hours=7.0, status="draft"), offer


def test_a_preview_says_what_the_first_plan_will_say_where_the_quota_is_with_others() -> None:
    job, _ = held_by_another(2, 2)
    shown = job_preview(job=job, now=NOW)
    assert (shown.first_spot, shown.first_on_demand, shown.deadline_chance, shown.cost_usd) == (0, 0, None, None)
    words = "team quota: 2 of 2 GPUs are with other jobs"
    assert shown.reasons[1] == f"Now it would wait: {words}."
    assert not any("spot in" in reason for reason in shown.reasons)
    Job.objects.filter(pk=job.pk).update(status="queued")
    plans_tick(now=NOW)
    first = PlanState.objects.get(job=job)
    assert (first.waits_for, first.plan["chance"]) == (words, None)


def test_a_preview_is_made_with_the_machines_that_the_quota_leaves() -> None:
    job, _ = held_by_another(4, 2)
    bound = job_preview(job=job, now=NOW)
    Team.objects.update(max_gpus=None)
    free = job_preview(job=Job.objects.get(pk=job.pk), now=NOW)
    assert ((bound.first_spot or 0) + (bound.first_on_demand or 0), free.first_spot) == (2, 4)
    assert "team quota: 2 of 4 GPUs are with other jobs: planned with 2 of 4 machines at most." in bound.reasons
    assert bound.deadline_chance is not None
    assert free.deadline_chance is not None
    assert bound.deadline_chance < 0.5 < free.deadline_chance  # two machines need eight and a half hours
    assert bound.last_safe_at is not None
    assert free.last_safe_at is not None
    assert bound.last_safe_at < free.last_safe_at


def test_the_chance_is_no_better_than_that_of_the_budget_to_pay_for_it() -> None:
    make_market(spot=8, past=[8] * 200)
    chances = []
    for budget in ("100.00", "20.00", "10.00", "0.01"):
        job = planned_job(hours=8.0, status="draft", budget_usd=budget)
        plan = job_preview(job=job, now=NOW)
        chances.append(plan.deadline_chance)
    free, tight, short, nothing = chances
    assert free is not None and tight is not None and short is not None  # noqa: PT018
    assert free > 0.9
    assert free > tight > short
    assert short < 0.2
    assert nothing is None
    assert "Now it would wait: budget: $0.00 of $0.01 spent." in plan.reasons


def test_the_form_and_a_dry_run_over_rest_say_the_quota_too(settings: Any) -> None:
    settings.MARKET = "seed=1"
    cast = make_cast()
    Team.objects.filter(pk=cast.team.pk).update(max_gpus=2)
    offer = make_market(spot=4, now=timezone.now())
    dataset = make_dataset(cast.team, 1)
    hold(planned_job(cast.team, hours=None, dataset=dataset), offer, 2)
    sent = {
        "name": "late-one", "model": "tiny:1m", "datasets": [{"name": dataset.name}], "goal": {"steps": 600, "step_time_s": 20.0},
        "resources": {"spot_policy": "prefer", "nodes": {"min": 1, "max": 4}}, "backend": "local", "dry_run": True,
        "deadline": (timezone.now() + dt.timedelta(hours=8)).isoformat(),
    }  # fmt: skip
    answer = client_for(cast.team, cast.operator).post("/api/v1/jobs/", sent)
    assert answer.status_code == 200, answer.content
    words = "Now it would wait: team quota: 2 of 2 GPUs are with other jobs."
    assert words in answer.json()["reasons"]
    assert answer.json()["deadline_chance"] is None
    client = Client()
    client.force_login(cast.operator)
    form = {
        "name": "late-one", "dataset": str(dataset.uuid), "model": "tiny:1m", "goal_steps": "600", "num_workers": "4",
        "min_workers": "1", "spot_policy": "prefer", "backend": "local",
    }  # fmt: skip
    page = client.get(reverse("job_new"))
    initial = {name: page.context["form"][name].value() for name in page.context["form"].fields}
    filled = {k: v for k, v in initial.items() if v is not None} | form
    assert words in client.get(reverse("job_plan_live"), filled).content.decode()


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
