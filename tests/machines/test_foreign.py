"""Jobs whose command speaks no protocol of ours, on bought machines: they follow no order, and yet what is ordered happens."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Attempt, Command, Directive, Job
from jobs.selectors.pauses import pause_states
from jobs.services.attempts import attempt_start
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_pause, job_resume
from tests.contract.conftest import Server
from tests.contract.conftest import server as server
from tests.machines.conftest import Provider
from tests.machines.world import FILE, live, machines, order, planned_job, trains, until
from tests.workers.world import make_filled_job, script
from workers.commands import leaving
from workers.machines import market_look

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(200)]

# A plain script: tells Kubeflow's address its progress, keeps a checkpoint of its own, and has never heard of an order.
PLAIN = """
import json, os, pathlib, sys, time, urllib.request
folder = pathlib.Path(sys.argv[1])
checkpoint, last = folder / "checkpoint", folder / "last"
step = int(checkpoint.read_text()) if checkpoint.exists() else 0
(folder / f"began-{os.environ['COUNTERFLOW_FENCE']}-{os.environ['RANK']}").write_text(str(step))
token = pathlib.Path(os.environ["KUBEFLOW_TRAINER_SERVER_TOKEN"]).read_text()
while not last.exists():
    step += 1
    metrics = [{"name": "current_step", "value": str(step)}, {"name": "loss", "value": "2.5"}]
    body = json.dumps({"trainerStatus": {"metrics": metrics}}).encode()
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    if os.environ["RANK"] == "0":
        urllib.request.urlopen(urllib.request.Request(os.environ["KUBEFLOW_TRAINER_SERVER_URL"], body, head))
        draft = folder / f"draft-{os.getpid()}"
        draft.write_text(str(step))
        os.replace(draft, checkpoint)
    time.sleep(0.2)
"""
DEAF = script("import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)")


@pytest.fixture
def plain_job(server: Server, settings: Any, own_var_dir: Path, provider: Provider, tmp_path: Path) -> Job:
    settings.VAR_DIR, settings.TRAINER_ENDPOINT, settings.ALLOW_JOB_COMMANDS = own_var_dir, server.url, True
    (tmp_path / "plain.py").write_text(PLAIN)
    market_look(now=timezone.now())
    run = f"python {tmp_path / 'plain.py'} {tmp_path}"
    return make_filled_job(now=timezone.now(), num_workers=2, config={**FILE, "run": run})


def runs(job: Job, fence: int) -> Attempt | None:
    return job.attempts.filter(fence=fence, status="running", last_step__gte=1).first()


def held(job: Job) -> list[str]:
    """Kinds of the machines that still cost money."""
    return sorted(m.kind for m in machines(job) if m.status != "terminated")


def done(command: Command) -> bool:
    command.refresh_from_db()
    return command.status == "done"


def test_a_plain_script_leaves_for_an_order_and_goes_on_from_its_own_checkpoint(plain_job: Job, tmp_path: Path) -> None:
    order(plain_job, "procure", 2)
    first = until(lambda: runs(plain_job, 1), "the script trains on two machines")
    assert first.capabilities == []

    idle = order(plain_job, "idle", 0)
    until(lambda: done(idle) and not held(plain_job), "its machines are given back", within_s=45)
    first.refresh_from_db()
    plain_job.refresh_from_db()
    assert (first.status, plain_job.status) == ("preempted", "recovering")
    assert first.detail == leaving.STOPPED.format(why=leaving.NO_ORDERS, grace_s=30.0)
    assert not Directive.objects.filter(attempt=first).exists()  # nobody would have fetched it

    saved = int((tmp_path / "checkpoint").read_text())
    order(plain_job, "procure", 1)
    second = until(lambda: runs(plain_job, 2), "it trains again on one machine")
    assert second.world_size == 1
    assert int((tmp_path / "began-2-0").read_text()) == saved
    (tmp_path / "last").touch()
    until(lambda: Job.objects.get(pk=plain_job.pk).status == "succeeded", "its end with exit code 0 is no failure")


def test_a_paused_plain_script_is_stopped_and_goes_on_from_its_own_checkpoint(plain_job: Job, tmp_path: Path) -> None:
    order(plain_job, "procure", 1)
    first = until(lambda: runs(plain_job, 1), "the script trains")
    plain_job.refresh_from_db()
    job_pause(job=plain_job, now=timezone.now(), actor=SYSTEM)
    assert pause_states(jobs=[plain_job])[plain_job.pk][0] == "stopping"
    until(lambda: Attempt.objects.get(pk=first.pk).ended_at, "it is stopped", within_s=45)
    first.refresh_from_db()
    plain_job.refresh_from_db()
    assert (first.status, plain_job.status, pause_states(jobs=[plain_job])) == ("preempted", "paused", {})

    saved = int((tmp_path / "checkpoint").read_text())
    job_resume(job=plain_job, now=timezone.now(), actor=SYSTEM)
    until(lambda: runs(plain_job, 2), "it trains again", within_s=60)
    assert int((tmp_path / "began-2-0").read_text()) == saved


def test_spot_and_on_demand_are_not_both_paid_for_once_a_plain_script_has_moved(plain_job: Job) -> None:
    order(plain_job, "procure", 1)
    until(lambda: runs(plain_job, 1), "the script trains on spot")
    switch = order(plain_job, "switch_to_on_demand", 0, 1)
    until(lambda: done(switch) and held(plain_job) == ["on_demand"], "only on-demand is held", within_s=45)
    assert runs(plain_job, 2) is not None


def test_a_script_deaf_to_sigterm_is_killed_after_its_grace(
    provider: Provider, runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(DEAF)
    monkeypatch.setattr("jobs.selectors.graces.GRACE_S", 0.5)
    job = planned_job()
    order(job, "procure", 1)
    attempt = until(lambda: live(job), "it starts")
    attempt_start(attempt=attempt, now=timezone.now(), hello={"world_size": 1, "start_step": 0})
    idle = order(job, "idle", 0)
    until(lambda: done(idle) and not held(job), "it is gone", within_s=30)
    attempt.refresh_from_db()
    assert attempt.status == "preempted"


def test_a_command_that_never_says_a_word_does_not_hold_up_an_order(
    provider: Provider, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ALLOW_JOB_COMMANDS = True
    monkeypatch.setattr(leaving, "UNHEARD", dt.timedelta(seconds=1))
    market_look(now=timezone.now())
    job = make_filled_job(now=timezone.now(), num_workers=1, config={**FILE, "run": "sleep 600"})
    order(job, "procure", 1)
    first = until(lambda: live(job), "it starts")
    switch = order(job, "switch_to_on_demand", 0, 1)
    until(lambda: done(switch) and held(job) == ["on_demand"], "only on-demand is held", within_s=45)
    first.refresh_from_db()
    assert (first.status, first.detail) == ("preempted", leaving.STOPPED.format(why=leaving.NO_WORD, grace_s=30.0))
    assert live(job) is not None


def test_a_trainer_that_does_not_fetch_its_order_is_stopped(
    provider: Provider, runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs(script("import time; time.sleep(600)"))
    monkeypatch.setattr(leaving, "UNHEARD", dt.timedelta(seconds=1))
    job = planned_job()
    order(job, "procure", 1)
    attempt = trains(job, 1)  # it can be resized, and never reports again
    idle = order(job, "idle", 0)
    until(lambda: done(idle) and not held(job), "it is gone", within_s=45)
    attempt.refresh_from_db()
    assert (attempt.status, attempt.detail) == (
        "preempted",
        leaving.STOPPED.format(why=leaving.NO_ANSWER, grace_s=30.0),
    )
    assert attempt.directives.get(action="resize").status == "expired"
