"""Snapshots at the address of a job file: checked before the start, written there, and gone on from by other processes."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Attempt, Job
from jobs.services.commands import commands_due
from jobs.services.events import SYSTEM
from jobs.services.jobs import job_cancel
from tests.contract.conftest import Server
from tests.contract.conftest import server as server
from tests.services import wait_until
from tests.workers.world import command_of, make_filled_job
from workers.backend_access import backend_named
from workers.execute import command_execute
from workers.launch_specs import launch_spec
from workers.rundirs import snapshot_dir
from workers.watch import attempts_watch

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(240)]
TRAINING = {"global_batch": 6, "micro_batch": 1, "seq_len": 32, "snapshot_every": 4, "export_every": 100_000}


@pytest.fixture(autouse=True)
def may_write_here(settings: Any) -> None:
    settings.ALLOW_JOB_COMMANDS = True


def with_uri(uri: str, **fields: Any) -> Job:
    return make_filled_job(config={"snapshot": {"uri": uri}}, **fields)


def test_each_job_has_a_folder_of_its_own_at_the_address(tmp_path: Path) -> None:
    jobs = [with_uri(f"file://{tmp_path}/bucket/") for _ in range(2)]
    specs = [launch_spec(Attempt(job=job, fence=1, world_size=1)) for job in jobs]
    told = [spec.command[spec.command.index("--snapshot_url") + 1] for spec in specs]
    assert told == [f"file://{tmp_path}/bucket/{job.uuid}" for job in jobs]
    assert [spec.env["COUNTERFLOW_SNAPSHOT_URL"] for spec in specs] == told
    assert "--snapshot_url" not in launch_spec(Attempt(job=make_filled_job(), fence=1, world_size=1)).command


def test_an_address_that_cannot_be_written_to_ends_the_job_before_it_starts(tmp_path: Path) -> None:
    (tmp_path / "bucket").write_text("a file, and no folder")
    job = with_uri(f"file://{tmp_path}/bucket")
    assert command_execute(command_of(job, "launch").pk) == "failed"
    job.refresh_from_db()
    assert (job.status, job.failure_class) == ("failed", "precheck")
    assert job.failure_message.startswith(f"Its snapshots cannot be written to file://{tmp_path}/bucket/{job.uuid}")
    assert not job.instances.exclude(status="terminated").exists()


def test_an_address_on_the_disk_is_refused_once_the_server_runs_no_commands_any_more(
    tmp_path: Path, settings: Any
) -> None:
    job = with_uri(f"file://{tmp_path}/bucket")
    settings.ALLOW_JOB_COMMANDS = False
    assert command_execute(command_of(job, "launch").pk) == "failed"
    job.refresh_from_db()
    assert "COUNTERFLOW_ALLOW_JOB_COMMANDS" in job.failure_message
    assert not (tmp_path / "bucket").exists()


@pytest.mark.slow
def test_a_training_goes_on_from_a_snapshot_at_the_address(
    server: Server, settings: Any, own_var_dir: Path, tmp_path: Path
) -> None:
    settings.VAR_DIR, settings.TRAINER_ENDPOINT = own_var_dir, server.url
    uri = f"local://{tmp_path}/bucket"  # any address but file:// goes the way of an object store
    job = with_uri(uri, now=timezone.now(), num_workers=1, model="tiny:60k", goal_steps=20_000, training=TRAINING)

    def attempt(fence: int) -> Attempt | None:
        for command in commands_due(now=timezone.now()):
            command_execute(command.pk)
        attempts_watch(now=timezone.now())
        return job.attempts.filter(fence=fence, status="running").first()

    def saved(found: Attempt | None) -> Any:
        return found is not None and job.snapshots.filter(attempt=found, status="verified").exists() and found

    first = wait_until(lambda: saved(attempt(1)), within_s=100, what="a snapshot was taken", every_s=0.5)
    kept = job.snapshots.filter(status="verified").latest("step")
    assert kept.uri == f"{uri}/{job.uuid}/{kept.name}"
    assert not list(snapshot_dir(job).glob("step-*"))
    (worker,) = backend_named("local").poll(first.handle).workers
    os.kill(worker.pid, signal.SIGKILL)

    second = wait_until(lambda: attempt(2), within_s=100, what="another attempt trains", every_s=0.5)
    second = Attempt.objects.select_related("resumed_from").get(pk=second.pk)
    assert second.resumed_from is not None
    assert (second.start_step, second.start_step >= kept.step) == (second.resumed_from.step, True)
    assert second.resumed_from.uri.startswith(f"{uri}/{job.uuid}/")
    assert second.resumed_from.proof == "equal"
    job.refresh_from_db()
    job_cancel(job=job, now=timezone.now(), actor=SYSTEM)
    wait_until(
        lambda: attempt(3) or not job.instances.exclude(status="terminated").exists(), within_s=60, what="it ends"
    )
