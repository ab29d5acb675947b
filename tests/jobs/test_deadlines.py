"""Deadlines: refused where they cannot be met, told once when they are missed."""

import datetime as dt

import pytest

from jobs.errors import Invalid
from jobs.models import Attempt, Event, Job
from jobs.services.deadlines import deadlines_sweep
from jobs.services.jobs import job_create, job_submit
from tests.factories import NOW, make_attempt, make_dataset, make_job, make_team

pytestmark = pytest.mark.django_db
HOUR = dt.timedelta(hours=1)


def draft(team, **fields):
    given = {"name": "late", "model": "tiny:1m", "goal_steps": 600, "num_workers": 2, "deadline": NOW + HOUR, **fields}
    return job_create(dataset=make_dataset(team), now=NOW, **given)


def with_pace(team, seconds):
    """An earlier job of the same settings that took so long a step."""
    attempt, _ = make_attempt(make_job(team, status="queued"))
    Attempt.objects.filter(pk=attempt.pk).update(
        last_step=99, running_at=NOW, heartbeat_at=NOW + dt.timedelta(seconds=100 * seconds)
    )


def test_a_draft_whose_deadline_has_passed_is_not_submitted():
    job = draft(make_team())
    with pytest.raises(Invalid) as refusal:
        job_submit(job=job, now=NOW + HOUR)
    assert "later one" in refusal.value.extra["fields"]["deadline"][0]
    assert Job.objects.get().status == "draft"


def test_steps_that_cannot_fit_at_the_fastest_pace_measured_are_refused_with_what_would_fit():
    team = make_team()
    with_pace(team, 8.0)
    with_pace(team, 7.2)
    with pytest.raises(Invalid) as refusal:
        job_submit(job=draft(team), now=NOW)  # 600 steps of 7.2 s are 1.2 h
    told = refusal.value.extra["fields"]["deadline"][0]
    assert "7.2 s (the fastest of earlier attempts" in told
    assert "At most 500 steps fit" in told
    assert job_submit(job=draft(team, goal_steps=500), now=NOW).status == "queued"


def test_steps_that_cannot_fit_at_the_declared_pace_are_refused():
    team = make_team()
    with pytest.raises(Invalid, match="cannot meet"):
        job_submit(job=draft(team, config={"goal": {"steps": 600, "step_time_s": 6.1}}), now=NOW)
    assert job_submit(job=draft(team, config={"goal": {"steps": 600, "step_time_s": 6.0}}), now=NOW).status == "queued"


def test_nothing_is_refused_where_no_pace_is_known():
    assert job_submit(job=draft(make_team(), goal_steps=1_000_000), now=NOW).status == "queued"


@pytest.mark.parametrize("status", ["queued", "running", "paused", "recovering"])
def test_a_missed_deadline_is_told_once_and_the_job_goes_on(status):
    job = make_job(status=status, deadline=NOW + HOUR)
    assert deadlines_sweep(now=NOW) == 0
    assert deadlines_sweep(now=NOW + HOUR) == 1
    assert deadlines_sweep(now=NOW + 2 * HOUR) == 0
    job.refresh_from_db()
    assert (job.status, job.deadline_passed_at) == (status, NOW + HOUR)
    assert "600 of 600 steps left" in Event.objects.get(kind="job.deadline_passed").text


def test_an_ended_job_misses_nothing():
    make_job(status="succeeded", deadline=NOW + HOUR)
    assert deadlines_sweep(now=NOW + 2 * HOUR) == 0
