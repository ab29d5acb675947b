"""Workers that are stopped get the time that a save takes: by the job file, else by the last save that was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.errors import Invalid
from jobs.models import Attempt, Job
from jobs.selectors.graces import HIGHEST_S, job_grace_s
from jobs.services.attempts import attempt_start
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel
from jobs.services.snapshots import snapshot_note
from tests.factories import NOW, make_attempt, make_job
from tests.workers.world import command_of, ended, launched, make_filled_job, script
from workers.commands import stop as stop_module
from workers.execute import command_execute
from workers.launch_specs import launch_spec

pytestmark = pytest.mark.django_db
Runs = Callable[[list[str]], None]


def saved(attempt: Attempt, save_s: float | None, kind: str = "gradient", step: int = 100) -> None:
    snapshot_note(
        attempt=attempt, name=f"{kind}-{step}", kind=kind, status="verified", step=step, now=NOW, uri="", save_s=save_s
    )


@pytest.mark.parametrize(
    ("saves_s", "grace_s"),
    [((), 30.0), ((4.0,), 30.0), ((4.0, 50.0), 150.0), ((50.0, None), 150.0), ((9e4,), HIGHEST_S)],
)
def test_it_is_three_times_the_last_measured_save_and_at_least_half_a_minute(
    saves_s: tuple[float | None, ...], grace_s: float
) -> None:
    job = make_job(status="queued")
    attempt, _ = make_attempt(job)
    saved(attempt, 2000.0, kind="weights")
    for step, save_s in enumerate(saves_s):
        saved(attempt, save_s, step=step)
    assert job_grace_s(job=job) == grace_s


def test_the_job_file_goes_before_what_was_measured() -> None:
    job = make_job(status="queued", config={"snapshot": {"grace_s": 240}})
    attempt, _ = make_attempt(job)
    saved(attempt, 500.0)
    assert job_grace_s(job=job) == 240.0


@pytest.mark.parametrize("grace_s", [0, 4.9, 3601, "long", True])
def test_what_is_no_time_for_it_is_refused_at_the_job_file(grace_s: Any) -> None:
    with pytest.raises(Invalid) as refusal:
        make_job(config={"snapshot": {"grace_s": grace_s}})
    assert list(refusal.value.extra["fields"]) == ["snapshot.grace_s"]


def test_an_order_to_launch_is_the_same_whatever_its_own_attempt_saves() -> None:
    job = make_filled_job()
    first, _ = make_attempt(job)
    saved(first, 40.0)
    second, _ = make_attempt(job)
    before = launch_spec(second)
    saved(second, 90.0, step=200)
    assert (launch_spec(first).grace_s, before.grace_s) == (30.0, 120.0)
    assert launch_spec(second) == before


def test_a_stop_gives_the_workers_that_time(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher kills them after what the order says; its second execution does not shorten it."""
    runs(script("import time; time.sleep(60)"))
    monkeypatch.setattr(stop_module, "LOOK_S", 0.0)
    job = make_filled_job()
    attempt = launched(job)
    attempt_start(attempt=attempt, now=NOW, hello={"world_size": 1, "start_step": 0})
    saved(attempt, 100.0)
    job_cancel(job=Job.objects.get(pk=job.pk), now=NOW, actor=SYSTEM)
    stop = command_of(job, "stop")
    command_execute(stop.pk)
    assert json.loads((Path(attempt.handle["folder"]) / "stop.json").read_text()) == {"grace_s": 300.0}
    stop.refresh_from_db()
    assert stop.result["grace_s"] == 300.0
    ended(attempt)
