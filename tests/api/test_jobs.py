"""Jobs over REST."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.models import Command, Job, Rule
from tests.api.http import client_for, strict
from tests.factories import make_attempt, make_cast, make_dataset, make_decision, make_job

pytestmark = pytest.mark.django_db
SOON = (timezone.now() + dt.timedelta(days=2)).isoformat()


def draft(dataset, **fields):
    return {"name": "tune", "model": "tiny:1m", "dataset": str(dataset.uuid), "goal_steps": 100, **fields}


def test_an_operator_creates_and_submits_a_job():
    cast = make_cast()
    client = client_for(cast.team, cast.operator)
    made = client.post("/api/v1/jobs/", draft(make_dataset(cast.team), deadline=SOON, budget_usd="12.50"))
    assert made.status_code == 201, made.content
    assert made.json()["status"] == "draft"
    done = client.post(f"/api/v1/jobs/{made.json()['id']}/submit/")
    assert done.status_code == 200, done.content
    assert done.json()["status"] == "queued"
    assert Command.objects.filter(kind="launch").count() == 1


def test_a_job_file_in_yaml_is_understood():
    cast = make_cast()
    dataset = make_dataset(cast.team, name="ui texts")
    text = f"""
name: tune
model: tiny:1m
datasets: [{{name: ui texts, weights: {{shard_000: 2.0}}}}]
goal: {{steps: 300, metric: loss, target: 1.5}}
deadline: {SOON}
budget: 20
resources: {{nodes: {{min: 1, max: 2}}, spot_policy: on-demand}}
snapshot: {{check_every: 50}}
rules: {{shard_loss: {{min_gap: 0.4}}}}
"""
    made = client_for(cast.team, cast.operator).post("/api/v1/jobs/", text, content_type="application/yaml")
    assert made.status_code == 201, made.content
    job = Job.objects.get()
    assert (job.dataset, job.goal_steps, job.goal_loss, job.num_workers, job.budget_usd) == (dataset, 300, 1.5, 2, 20)
    assert job.job_shards.get(shard__key="shard_000").weight == 2.0
    assert job.config["snapshot"]["check_every"] == 50


def test_shards_of_several_datasets_are_refused_with_what_to_do_instead():
    cast = make_cast()
    make_dataset(cast.team, name="one"), make_dataset(cast.team, name="two")
    body = {"name": "tune", "model": "tiny:1m", "goal": {"steps": 10}, "datasets": [{"name": "one"}, {"name": "two"}]}
    answer = client_for(cast.team, cast.operator).post("/api/v1/jobs/", body)
    assert answer.status_code == 400
    assert "A job trains on the shards of one dataset, and 2 are named" in str(answer.json()["fields"]["datasets"])


def test_a_job_file_may_say_epochs_in_the_place_of_steps():
    cast = make_cast()
    client, asked = client_for(cast.team, cast.operator), draft(make_dataset(cast.team), goal={"epochs": 2})
    both = client.post("/api/v1/jobs/", asked)
    assert both.status_code == 400
    del asked["goal_steps"]
    made = client.post("/api/v1/jobs/", asked)
    assert made.status_code == 201, made.content
    assert made.json()["goal_steps"] == 38  # 2 x 300 samples, 16 a step
    assert Job.objects.get().config["goal"] == {"epochs": 2}


def test_an_unknown_name_in_a_job_file_is_refused_and_named():
    cast = make_cast()
    answer = client_for(cast.team, cast.operator).post(
        "/api/v1/jobs/", draft(make_dataset(cast.team), goal={"steps": 5, "metrik": "loss"})
    )
    assert answer.status_code == 400
    assert list(strict(answer)["fields"]) == ["goal.metrik"]


def test_a_deadline_without_a_zone_is_refused_with_what_would_work():
    cast = make_cast()
    answer = client_for(cast.team, cast.operator).post(
        "/api/v1/jobs/", draft(make_dataset(cast.team), deadline="2030-12-01T10:00")
    )
    assert answer.status_code == 400
    assert "+01:00" in strict(answer)["fields"]["deadline"][0]


def test_a_dry_run_plans_and_creates_nothing():
    cast = make_cast()
    dataset = make_dataset(cast.team)
    earlier = make_job(cast.team, dataset=dataset, num_workers=1)
    attempt, _ = make_attempt(earlier, num_workers=1)
    type(attempt).objects.filter(pk=attempt.pk).update(
        last_step=99, heartbeat_at=attempt.running_at + dt.timedelta(seconds=200)
    )
    before = Job.objects.count()
    answer = client_for(cast.team, cast.operator).post("/api/v1/jobs/", draft(dataset, dry_run=True, deadline=SOON))
    plan = strict(answer)
    assert answer.status_code == 200, plan
    assert (plan["duration_s"], plan["deadline_chance"]) == (200.0, 1.0)
    assert Job.objects.count() == before


def test_a_plan_without_a_past_says_why_it_knows_nothing():
    cast = make_cast()
    job = make_job(cast.team)
    plan = strict(client_for(cast.team, cast.viewer).get(f"/api/v1/jobs/{job.uuid}/plan/"))
    assert plan["duration_s"] is None
    assert any("No earlier job" in reason for reason in plan["reasons"])


def test_autonomy_in_a_job_file_needs_somebody_who_may_approve():
    cast = make_cast()
    body = draft(make_dataset(cast.team), autonomy={"augment_shard": "auto"})
    refused = client_for(cast.team, cast.operator).post("/api/v1/jobs/", body)
    assert (refused.status_code, Job.objects.count()) == (403, 0)
    made = client_for(cast.team, cast.approver).post("/api/v1/jobs/", body)
    assert made.status_code == 201, made.content
    assert Rule.objects.get().job.name == "tune"


@pytest.mark.parametrize("action", ["submit", "pause", "resume", "cancel"])
def test_a_viewer_is_refused_and_a_stranger_finds_nothing(action):
    cast = make_cast()
    job = make_job(cast.team)
    url = f"/api/v1/jobs/{job.uuid}/{action}/"
    assert client_for(cast.team, cast.viewer).post(url).status_code == 403
    stranger_team = cast.outsider.memberships.get().team
    assert client_for(stranger_team, cast.outsider).post(url).status_code == 404


def test_a_running_job_is_held_and_goes_on():
    cast = make_cast()
    job = make_job(cast.team, status="queued")
    make_attempt(job)
    client = client_for(cast.team, cast.operator)
    assert client.post(f"/api/v1/jobs/{job.uuid}/pause/").json()["status"] == "paused"
    assert client.post(f"/api/v1/jobs/{job.uuid}/resume/").json()["status"] == "running"
    assert client.post(f"/api/v1/jobs/{job.uuid}/resume/").status_code == 409


def test_a_list_takes_as_many_queries_for_200_jobs_as_for_5():
    cast = make_cast()
    dataset = make_dataset(cast.team)
    client = client_for(cast.team, cast.viewer, "read")

    def num_queries() -> int:
        with CaptureQueriesContext(
            connection,
        ) as seen:
            answer = client.get("/api/v1/jobs/?page_size=200")
        assert answer.status_code == 200, answer.content
        return len(seen)

    for _ in range(5):
        make_decision(make_job(cast.team, dataset=dataset, status="running"))
    num_queries()  # the first use of a token is noted
    few = num_queries()
    Job.objects.bulk_create(
        [
            Job(team=cast.team, dataset=dataset, name=f"j{i}", model="m", goal_steps=1, status="draft")
            for i in range(195)
        ]
    )
    assert num_queries() == few
    assert few <= 14


def test_a_list_is_filtered_ordered_and_capped():
    cast = make_cast()
    dataset = make_dataset(cast.team)
    for name in "cab":
        make_job(cast.team, dataset=dataset, name=name)
    make_job(cast.team, dataset=dataset, name="d", status="running")
    client = client_for(cast.team, cast.viewer)
    found = strict(client.get("/api/v1/jobs/?status=draft&ordering=name&page_size=100000"))
    assert [j["name"] for j in found["results"]] == ["a", "b", "c"]
    assert strict(client.get("/api/v1/jobs/?status=draft,running"))["count"] == 4
    assert strict(client.get("/api/v1/jobs/?text=d"))["count"] == 1
