"""Costs on the page, over REST and as CSV: the same numbers."""

from __future__ import annotations

import csv
import datetime as dt
import io
from decimal import Decimal

import pytest
from django.utils import timezone

from jobs.models import Job, Team
from jobs.selectors.money_told import team_money_told
from jobs.services.instances import instance_request, instance_running, instance_terminated
from tests.api.http import client_for
from tests.factories import make_attempt, make_cast, make_job
from tests.pages.world import signed_in

pytestmark = pytest.mark.django_db


def spent(cast, name="=dear"):
    now = timezone.now()
    attempt, _ = make_attempt(make_job(cast.team, status="queued", now=now, name=name, budget_usd=Decimal(10)), now=now)
    machine = instance_request(
        attempt=attempt, claim=name, backend="local", num_gpus=1, price_usd_per_hour=Decimal(1), kind="spot",
        now=now - dt.timedelta(minutes=150),
    )  # fmt: skip
    instance_running(instance=machine, now=now)
    instance_terminated(instance=machine, now=now)
    return attempt.job


def test_page_csv_and_rest_show_the_same_sums():
    cast = make_cast()
    spent(cast)
    client = signed_in(cast.viewer)
    assert "$2.50" in client.get("/costs/").content.decode()
    rows = list(csv.DictReader(io.StringIO(client.get("/costs/?form=csv").content.decode())))
    assert (rows[0]["job"], rows[0]["total_usd"]) == ("'=dear", "2.5000")
    told = client_for(cast.team, cast.viewer, "read").get("/api/v1/costs/").json()
    assert (told["sums"]["total_usd"], told["jobs"][0]["spot_usd"]) == ("2.5000", "2.5000")
    assert sum(Decimal(day["total_usd"]) for day in told["days"]) == Decimal("2.5")


def test_other_teams_see_nothing_of_it():
    cast, other = make_cast(), make_cast()
    spent(cast)
    assert "$2.50" not in signed_in(other.admin).get("/costs/").content.decode()
    client = client_for(other.team, other.admin, "read")
    assert client.get("/api/v1/costs/").json()["jobs"] == []
    assert client.get(f"/api/v1/costs/?team={cast.team.uuid}").status_code == 404


def test_a_period_that_is_none_is_refused_by_name():
    cast = make_cast()
    client = client_for(cast.team, cast.viewer, "read")
    answer = client.get("/api/v1/costs/?start=2026-05-01T00:00:00Z&end=2026-04-01T00:00:00Z")
    assert (answer.status_code, "start" in answer.json()["fields"]) == (400, True)


BASELINE = {"policy": "OnDemandOnly", "title": "On-demand only", "cost_usd": 4.25, "finish_at": None, "in_time": False}


def test_what_others_would_have_paid_stands_beside_the_costs_of_an_ended_job():
    cast = make_cast()
    job = spent(cast)
    Job.objects.filter(pk=job.pk).update(report={"baselines": [BASELINE], "cost": {"total_usd": 2.5}})
    client = signed_in(cast.viewer)
    page = client.get("/costs/").content.decode()
    assert "On-demand only <b>$4.25</b>" in page
    assert "too late" in page
    row = next(csv.DictReader(io.StringIO(client.get("/costs/?form=csv").content.decode())))
    assert (row["OnDemandOnly_usd"], row["SpotFirst_usd"]) == ("4.2500", "")


def test_each_attempt_on_the_page_of_a_job_has_its_cost():
    cast = make_cast()
    job = spent(cast)
    page = signed_in(cast.viewer).get(f"/jobs/{job.uuid}/").content.decode()
    attempts = page[page.index('id="h-att"') :]
    assert "$2.50" in attempts[: attempts.index("</section>")]


def test_the_month_of_a_team_stands_on_the_page_and_over_rest_and_only_an_admin_sets_its_budget():
    cast = make_cast()
    spent(cast)
    form = {"name": cast.team.name, "time_zone": "UTC", "two_person_from_usd": "0", "budget_usd": "10"}
    assert signed_in(cast.approver).post("/team/settings/", form).status_code == 403
    assert signed_in(cast.admin).post("/team/settings/", form).status_code == 302
    assert Team.objects.get(pk=cast.team.pk).budget_usd == 10
    page = signed_in(cast.viewer).get("/costs/").content.decode()
    month = page[page.index('id="h-month"') :]
    month = month[: month.index("</section>")]
    assert "$10.00" in month
    url = f"/api/v1/teams/{cast.team.uuid}/"
    told = client_for(cast.team, cast.viewer, "read").get(f"{url}month/").json()
    assert (told["budget_usd"], told["reserved_usd"], told["usd_per_hour"]) == ("10.0000", "0.0000", "0.0000")
    assert Decimal(told["spent_usd"]) + Decimal(told["left_usd"]) == 10
    assert told["forecast_usd"] == told["spent_usd"]
    patch = {"budget_usd": "7.50"}
    assert client_for(cast.team, cast.approver).patch(url, patch).status_code == 403
    assert client_for(cast.team, cast.admin).patch(url, patch).json()["budget_usd"] == "7.50"
    assert client_for(cast.team, cast.admin).patch(url, {"budget_usd": None}).json()["budget_usd"] is None
    assert client_for(cast.team, cast.viewer, "read").get(f"{url}month/").json()["left_usd"] is None


def test_the_month_is_expected_to_cost_what_runs_until_it_ends():
    now = dt.datetime(2026, 10, 20, tzinfo=dt.UTC)
    cast = make_cast()
    attempt, _ = make_attempt(make_job(cast.team, status="queued", now=now), now=now)
    machine = instance_request(
        attempt=attempt, claim="m", backend="local", num_gpus=1, price_usd_per_hour=Decimal(1), now=now
    )
    instance_running(instance=machine, now=now)
    assert team_money_told(team=cast.team, now=now).forecast_usd == 12 * 24, "an end that is not in sight"
    attempt.last_step, attempt.heartbeat_at = 99, now + dt.timedelta(hours=1)
    attempt.save()
    Job.objects.filter(pk=attempt.job_id).update(current_step=100, goal_steps=600)
    told = team_money_told(team=cast.team, now=now + dt.timedelta(hours=1))
    assert round(told.forecast_usd, 1) == 6, "500 of 600 steps at 100 an hour"
