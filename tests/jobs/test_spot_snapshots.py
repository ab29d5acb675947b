"""Jobs on spot bound what they lose with a machine, and say what becomes of their work before it costs money."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from jobs.errors import Invalid
from jobs.models import Event, Instance, Job, Snapshot
from jobs.previews import job_preview
from jobs.selectors.promises import OWN_COMMAND, job_promises
from jobs.services.jobs import job_submit
from jobs.services.spot_snapshots import snapshots_late_sweep
from tests.factories import NOW, make_attempt, make_job

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def sells_machines(settings: Any) -> None:
    settings.MARKET = "seed=7"


def on_spot(policy: str = "prefer", *, every: int | None = None, steps: int = 60, **fields: Any) -> Job:
    config = {"resources": {"spot_policy": policy, "nodes": {"min": 1, "max": 2}}, **fields.pop("config", {})}
    training = {} if every is None else {"snapshot_every": every}
    return make_job(goal_steps=steps, config=config, training=training, **fields)


@pytest.mark.parametrize("policy", ["prefer", "only"])
def test_a_job_on_spot_without_snapshots_is_refused_with_what_it_would_lose(policy: str) -> None:
    with pytest.raises(Invalid) as refusal:
        on_spot(policy, every=0)
    assert "all of the 60 steps would be lost" in refusal.value.extra["fields"]["training.snapshot_every"][0]


def test_a_draft_from_before_is_refused_at_its_submit() -> None:
    job = on_spot()
    job.training = {**job.training, "snapshot_every": 0}
    with pytest.raises(Invalid):
        job_submit(job=job, now=NOW)


def test_without_spot_a_job_may_do_without_snapshots() -> None:
    assert on_spot("never", every=0).training["snapshot_every"] == 0
    assert make_job(training={"snapshot_every": 0}).training["snapshot_every"] == 0


@pytest.mark.parametrize(
    ("every", "steps", "taken"), [(None, 60, 15), (60, 60, 15), (59, 60, 59), (5, 60, 5), (9, 3, 1)]
)
def test_an_interval_that_its_steps_never_come_to_is_shortened(every: int | None, steps: int, taken: int) -> None:
    assert on_spot(every=every, steps=steps).training["snapshot_every"] == taken


def test_the_correction_is_said_in_history_and_plan() -> None:
    job = on_spot(config={"snapshot": {"check_every": 500}})
    created = Event.objects.get(job=job, kind="job.created")
    assert "every 15 steps instead of 500, which its 60 steps would never come to" in created.text
    assert any("every 15 steps (not 500: it has 60)" in reason for reason in job_preview(job=job, now=NOW).reasons)


def test_a_command_of_its_own_is_told_at_submit_what_a_change_of_machines_does_to_it(settings: Any) -> None:
    settings.ALLOW_JOB_COMMANDS = True
    job = on_spot(config={"run": "python train.py"}, every=0)  # what it saves is its own matter
    assert job_preview(job=job, now=NOW).reasons[-1] == OWN_COMMAND
    job_submit(job=job, now=NOW)
    assert OWN_COMMAND in Event.objects.get(job=job, text__contains="submitted").text
    attempt, _ = make_attempt(job, num_workers=1)
    assert job_promises(job=job) == [OWN_COMMAND]
    type(attempt).objects.filter(pk=attempt.pk).update(capabilities=["pause", "resize"])
    assert job_promises(job=job) == []  # it has shown that it follows orders


def test_a_snapshot_that_is_two_intervals_late_on_spot_is_said_once() -> None:
    job = on_spot(every=10, steps=600, status="queued")
    attempt, _ = make_attempt(job, num_workers=1)
    machine = Instance.objects.create(
        team=job.team, job=job, backend="local", claim="m", kind="spot", status="running", price_usd_per_hour=1,
        num_gpus=1, created_at=NOW, status_at=NOW, started_at=NOW,
    )  # fmt: skip

    def late(step: int) -> int:
        Job.objects.filter(pk=job.pk).update(current_step=step)
        return snapshots_late_sweep(now=NOW + dt.timedelta(seconds=step))

    assert late(20) == 0
    assert [late(21), late(30)] == [1, 0]
    Snapshot.objects.create(
        job=job, attempt=attempt, step=30, kind="gradient", status="verified", name="step-000030", created_at=NOW,
        status_at=NOW,
    )  # fmt: skip
    assert [late(50), late(51), late(80)] == [0, 1, 0]
    assert "its newest snapshot is that of step 30" in Event.objects.filter(kind="job.snapshot_late").latest("id").text
    Instance.objects.filter(pk=machine.pk).update(kind="on_demand")
    Event.objects.filter(kind="job.snapshot_late").delete()
    assert late(90) == 0
