"""The first steps of an attempt are often unlike the rest: the longest batches, or compiling. From reports to what is alarmed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.test import Client
from django.utils import timezone

from jobs.epoch import plans_tick
from jobs.models import Decision, Job, PlanState
from jobs.planning import job_evaluate
from jobs.selectors.progress import progresses
from jobs.services.attempts import attempt_start
from jobs.services.plans import PACE_CHANGED, plan_ask
from tests.factories import NOW, make_attempt, make_job
from tests.ingest.bodies import post, report
from tests.planning.world import hold, make_market, planned_job

pytestmark = pytest.mark.django_db
SLOW_FIRST = [10.0, 10.0, *[2.0] * 38]
ALARMS = ("resize", "switch_to_on_demand")


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 8)


def train(
    monkeypatch: pytest.MonkeyPatch, job: Job, step_times: list[float], looked: Callable[[int, dt.datetime], None]
) -> dt.datetime:
    """Report step by step over HTTP, on a clock that moves by each step; `looked(steps done, now)` after each."""
    now = NOW
    monkeypatch.setattr(timezone, "now", lambda: now)
    attempt, secret = make_attempt(job, now=now, num_workers=1)
    hello = {"world_size": 1, "start_step": 0, "planned_steps": job.goal_steps, "capabilities": ["resize", "snapshot"]}
    attempt_start(attempt=attempt, now=now, hello=hello)
    for step, time_s in enumerate(step_times):
        now += dt.timedelta(seconds=time_s)
        steps = {"step": [step], "step_time_s": [time_s], "tokens": [10]}
        answer = post(Client(), attempt, secret, "reports", report(seq=step, points=[], steps=steps))
        assert answer.status_code == 200
        job.refresh_from_db()
        job_evaluate(job=job, now=now)
        looked(step + 1, now)
    return now


@pytest.mark.parametrize(("step_times", "is_late"), [(SLOW_FIRST, False), ([10.0] * 40, True)])
def test_the_deadline_rule_is_not_alarmed_by_two_slow_first_steps(
    monkeypatch: pytest.MonkeyPatch, step_times: list[float], is_late: bool
) -> None:
    job = make_job(status="queued", now=NOW, goal_steps=1000, num_workers=1, deadline=NOW + dt.timedelta(seconds=4000))
    now = train(monkeypatch, job, step_times, lambda done, at: None)
    assert Decision.objects.filter(kind__in=ALARMS).exists() == is_late
    left_s = sum(step_times[-1:]) * (1000 - len(step_times))
    finish = progresses(jobs=[job], now=now)[job.pk].finish_at
    assert finish is not None
    assert (finish - now).total_seconds() == pytest.approx(left_s, rel=0.05)


@pytest.mark.parametrize("declared_s", [None, 2.0])
@pytest.mark.parametrize(("step_times", "is_late"), [(SLOW_FIRST, False), ([10.0] * 40, True)])
def test_the_planner_is_not_alarmed_by_two_slow_first_steps(
    monkeypatch: pytest.MonkeyPatch, step_times: list[float], is_late: bool, declared_s: float | None
) -> None:
    """Every step is followed by an epoch."""
    offer = make_market(spot=4)
    job = planned_job(
        nodes=(1, 1), hours=4000 / 3600, goal_steps=1000, step_time_s=declared_s, now=NOW - dt.timedelta(seconds=60)
    )
    hold(job, offer, 1, since=NOW - dt.timedelta(seconds=60))
    alarms: list[tuple[int, float | None]] = []

    def looked(done: int, now: dt.datetime) -> None:
        plan_ask(job=job, now=now, why=PACE_CHANGED)
        made = plans_tick(now=now)
        alarms.extend((done, PlanState.objects.get(job=job).plan["step_time_s"]) for d in made if d.kind in ALARMS)

    train(monkeypatch, job, step_times, looked)
    assert bool(alarms) == is_late, alarms
    plan = PlanState.objects.get(job=job).plan
    assert plan["step_time_s"] == pytest.approx(step_times[-1], rel=0.05)
