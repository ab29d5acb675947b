"""Asking for a plan: the job is due at once, and asking twice changes nothing."""

from __future__ import annotations

import datetime as dt

import pytest

from jobs.models import PlanState
from jobs.services.plans import CALM, PACE_CHANGED, plan_ask
from tests.factories import NOW, make_job

pytestmark = pytest.mark.django_db


def test_a_job_that_was_asked_for_is_due_at_once_and_keeps_its_first_urgent_reason() -> None:
    job = make_job()
    plan_ask(job=job, now=NOW, why="a machine was taken away")
    plan_ask(job=job, now=NOW + dt.timedelta(seconds=1), why="something else")
    plan_ask(job=job, now=NOW + dt.timedelta(seconds=1), why=PACE_CHANGED)
    state = PlanState.objects.get(job=job)
    assert (state.due_at, state.why) == (NOW, "a machine was taken away")


@pytest.mark.parametrize("calm", CALM)
def test_a_reason_that_cannot_wait_takes_the_place_of_a_calm_one(calm: str) -> None:
    job = make_job()
    PlanState.objects.create(job=job, due_at=NOW, why=calm)
    plan_ask(job=job, now=NOW + dt.timedelta(seconds=1), why="a machine was taken away")
    state = PlanState.objects.get(job=job)
    assert (state.due_at, state.why) == (NOW, "a machine was taken away")


def test_a_regular_time_is_brought_forward() -> None:
    job = make_job()
    PlanState.objects.create(job=job, due_at=NOW + dt.timedelta(minutes=5))
    plan_ask(job=job, now=NOW, why="its deadline moved")
    state = PlanState.objects.get(job=job)
    assert (state.due_at, state.why) == (NOW, "its deadline moved")
