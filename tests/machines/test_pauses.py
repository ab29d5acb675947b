"""A real training on bought machines is paused: one is taken, the others are given back, and it goes on where it held."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Event, Instance, Job
from jobs.selectors.machines import holdings
from jobs.services.commands import command_issue
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel, job_pause, job_resume
from jobs.services.spending import pauses_sweep
from tests.contract.conftest import Server
from tests.contract.conftest import server as server
from tests.machines.conftest import Provider
from tests.machines.test_planned_run import TRAINING, newest, runs
from tests.machines.world import FILE, until
from tests.workers.world import make_filled_job
from workers.machines import market_look

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


def fresh(job: Job) -> Job:
    job.refresh_from_db()
    return job


def left(job: Job) -> bool:
    return newest(job).ended_at is not None


def test_a_paused_training_outlives_its_machines_and_goes_on_with_the_very_state_in_which_it_held(
    server: Server, settings: Any, own_var_dir: Path, provider: Provider
) -> None:
    settings.VAR_DIR, settings.TRAINER_ENDPOINT = own_var_dir, server.url
    market_look(now=timezone.now())
    job = make_filled_job(
        now=timezone.now(), num_workers=2, model="tiny:60k", goal_steps=100_000, training=TRAINING, config=FILE
    )
    command_issue(job=job, kind="procure", key="two", args={"spot": 2, "on_demand": 0}, now=timezone.now())
    until(lambda: runs(job, 1, steps=3), "it trains on two machines")
    first = newest(job)
    job_pause(job=fresh(job), now=timezone.now(), actor=SYSTEM)
    until(lambda: first.directives.get(action="pause").status == "applied", "the trainer holds")

    provider.client.interrupt(first.placements.get(rank=1).instance.claim)
    until(lambda: left(job), "it saves and leaves the machine that is taken")
    until(lambda: holdings(job).under_notice == 0, "the machine is given up")
    assert (fresh(job).status, newest(job), holdings(job).spot) == ("paused", first, 1)
    assert pauses_sweep(now=timezone.now()) == 0, "the pause is short"
    assert pauses_sweep(now=job.status_at + dt.timedelta(hours=1)) == 1
    job.commands.filter(status="issued").update(due_at=timezone.now())
    until(lambda: not Instance.objects.exclude(status="terminated").exists(), "the other is given back")
    assert (fresh(job).status, newest(job)) == ("paused", first)
    assert Event.objects.filter(job=job, kind="job.idle").exists()

    job_resume(job=fresh(job), now=timezone.now(), actor=SYSTEM)
    command_issue(job=job, kind="procure", key="one", args={"spot": 1, "on_demand": 0}, now=timezone.now())
    until(lambda: runs(job, 2, steps=1), "it trains again")
    first.refresh_from_db()
    second = newest(job)
    assert fresh(job).status == "running"
    assert second.resumed_from is not None
    assert (second.resumed_from.proof, second.start_step) == ("equal", first.last_step + 1)
    job_cancel(job=fresh(job), now=timezone.now(), actor=SYSTEM)
    until(lambda: not Instance.objects.exclude(status="terminated").exists(), "all machines were given back")
