"""The page of a planned job, the queue's reasons, and the baselines beside it."""

from __future__ import annotations

import datetime as dt

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.epoch import plans_tick
from jobs.models import Decision, Job, MarketForecast, PlanState
from jobs.selectors.baselines import baselines_of
from jobs.selectors.planned_page import held_line, planned_chart
from tests.factories import NOW, Cast, make_cast, make_job
from tests.planning.world import hold, make_market, planned_job, train

pytestmark = pytest.mark.django_db


@pytest.fixture
def cast() -> Cast:
    return make_cast()


def page(cast: Cast, url: str) -> str:
    client = Client()
    client.force_login(cast.approver)
    answer = client.get(url)
    assert answer.status_code == 200
    return answer.content.decode()


def test_the_page_of_a_planned_job_shows_its_plan_its_chart_and_what_others_would_have_paid(cast: Cast) -> None:
    offer = make_market(spot=4)
    job = planned_job(cast.team, hours=8.0, budget_usd="100.00")
    hold(job, offer, 2, since=NOW - dt.timedelta(hours=1))
    train(job, workers=2, steps=100, step_time_s=30.0)
    plans_tick(now=NOW)
    text = page(cast, reverse("job", args=[job.uuid]))
    assert "Market and plan" in text
    assert "Last safe moment" in text
    assert 'id="planned-chart"' in text
    assert "Uniform Progress" in text
    assert "4 to be had" in text


def test_the_chart_goes_on_with_the_forecast_and_marks_the_decisions(cast: Cast) -> None:
    """Twelve ticks of five minutes, begun half an hour ago: six lie ahead."""
    offer = make_market(spot=4)
    job = planned_job(cast.team, hours=8.0)
    plans_tick(now=NOW)
    decision = Decision.objects.get(job=job)
    begun = NOW - dt.timedelta(minutes=30)
    lines = {level: [float(level)] * 11 + [9.0] for level in ("0.1", "0.5", "0.9")}
    fields = {"start_at": begun, "gap_s": 300, "mean": [1.0] * 12, "quantiles": lines, "computed_at": begun}
    MarketForecast.objects.create(offer=offer, target="price", model="ets", **fields)
    state = PlanState.objects.get(job=job)
    chart = planned_chart(job=job, state=state, now=NOW + dt.timedelta(seconds=60))
    ahead = chart["price_ahead"]
    assert ahead["times"][:2] == [NOW + dt.timedelta(seconds=60), NOW + dt.timedelta(seconds=300)]
    assert ahead["times"][-1] == NOW + dt.timedelta(minutes=30)
    assert ahead["low"] == [0.1] * 5 + [9.0, 9.0]
    assert chart["count_ahead"] is None
    assert planned_chart(job=job, state=state, now=NOW + dt.timedelta(hours=1))["price_ahead"] is None
    text = page(cast, reverse("job", args=[job.uuid]))
    lane = text[text.index("data-lane") : text.index("data-planned-chart")]
    assert f'href="{reverse("decision", args=[decision.uuid])}"' in lane
    assert f'data-at="{timezone.localtime(decision.created_at):%Y-%m-%d %H:%M:%S}"' in lane
    assert "procure" in lane
    assert "Price ahead: as it is now, as no forecast is stored." in text


def test_the_jobs_list_says_for_what_a_job_waits_and_its_place(cast: Cast) -> None:
    make_market(spot=0)
    planned_job(cast.team, hours=40.0)
    first = planned_job(cast.team, hours=40.0, priority=3)
    plans_tick(now=NOW)
    text = page(cast, reverse("jobs"))
    assert text.count("waits for spot in a/sim-1x: 0 of 1") == 2
    row = text[text.index(first.name) :]
    assert "number 1 in the queue" in row[: row.index("</tr>")]


def test_a_job_whose_size_is_given_by_hand_has_no_plan_on_its_page(cast: Cast) -> None:
    job = make_job(cast.team, status="queued")
    assert "Market and plan" not in page(cast, reverse("job", args=[job.uuid]))


def test_an_ask_shows_both_outcomes_the_cap_and_until_when_an_answer_helps(cast: Cast) -> None:
    make_market(spot=0)
    planned_job(cast.team, hours=5.2)
    decision = plans_tick(now=NOW)[0]
    text = page(cast, reverse("decision", args=[decision.uuid]))
    assert "If you say yes" in text
    assert "If you say no" in text
    assert f"${decision.args['max_usd']:,.2f}" in text
    assert "chance to make the deadline" in text


def test_machines_held_are_a_step_line_from_their_start_to_their_end() -> None:
    offer = make_market(spot=4)
    job = planned_job()
    hold(job, offer, 2, since=NOW)
    hold(job, offer, 1, since=NOW + dt.timedelta(seconds=60), ended_at=NOW + dt.timedelta(seconds=90))
    end = NOW + dt.timedelta(seconds=120)
    moments, values = held_line(list(job.instances.select_related("offer")), "spot", end)
    assert values == [1, 2, 3, 2, 2]
    assert moments[-1] == end


def test_on_demand_only_costs_its_price_for_the_work_and_spot_is_cheaper_where_it_is_there() -> None:
    """Four machines at $3 for 5 h and a minute of changeover, in slots of 5 minutes."""
    make_market(spot=4, past=[4] * 200)
    job = planned_job(hours=8.0)
    plans_tick(now=NOW)
    state = PlanState.objects.get(job=job)
    lines = {b.policy: b for b in baselines_of(job=job, state=state, slot_s=300.0, now=NOW)}
    assert lines["OnDemandOnly"].cost_usd == pytest.approx(60.0, rel=0.03)
    assert lines["SpotFirst"].cost_usd == pytest.approx(20.0, rel=0.05)
    assert all(line.in_time for line in lines.values())


def test_the_chart_of_a_job_that_has_ended_ends_with_it() -> None:
    offer = make_market(spot=4)
    job = planned_job(hours=8.0)
    hold(job, offer, 2, since=NOW)
    plans_tick(now=NOW)
    ended = NOW + dt.timedelta(hours=2)
    Job.objects.filter(pk=job.pk).update(status="succeeded", ended_at=ended)
    job.refresh_from_db()
    chart = planned_chart(job=job, state=PlanState.objects.get(job=job), now=NOW + dt.timedelta(days=3))
    assert chart["end"] == ended
    assert chart["last_safe"] is None
    assert chart["finish"] == {}


def test_the_team_page_sets_how_many_gpus_planned_jobs_may_hold_and_rest_says_what_a_job_waits_for(cast: Cast) -> None:
    make_market(spot=4)
    job = planned_job(cast.team, hours=8.0, nodes=(2, 4))
    client = Client()
    client.force_login(cast.admin)
    form = {"name": cast.team.name, "time_zone": "UTC", "two_person_from_usd": "0", "max_gpus": "1"}
    assert client.post(reverse("team_edit"), form).status_code == 302
    plans_tick(now=NOW)
    told = client.get(f"/api/v1/jobs/{job.uuid}/").json()
    assert told["waits_for"] == "team quota: 0 of 1 GPUs are with other jobs"
    assert told["queue_place"] == 1
