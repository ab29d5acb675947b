"""A Celery worker is killed in the middle of a launch, on a real broker: another one completes it and starts nothing twice."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from django.db import connection
from django.utils import timezone

from jobs.models import Attempt, Command, Instance
from jobs.services.commands import commands_due
from tests.services import wait_until
from tests.workers.world import command_of, make_filled_job
from workers.backend_access import backend_named
from workers.celery_app import celery_conf

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.services]
REPO = Path(__file__).resolve().parents[2]


def database_url() -> str:
    """Address of the test's own database, for another process."""
    given = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{given['NAME']}"
    host = f"{given['HOST'] or '127.0.0.1'}:{given['PORT'] or 5432}"
    return f"postgres://{quote(given['USER'])}:{quote(given['PASSWORD'])}@{host}/{given['NAME']}"


class Workers:
    """Celery workers of the product in processes of their own."""

    def __init__(self, redis_url: str, folder: Path) -> None:
        self.redis_url, self.folder = redis_url, folder
        self.stalled = folder / "stalled"
        self.started: list[subprocess.Popen[bytes]] = []
        self.app = Celery("sender", set_as_current=False)
        self.app.conf.update(celery_conf(redis_url), imports=())

    def start(self, *, stall: bool = False) -> subprocess.Popen[bytes]:
        env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
            "DATABASE_URL": database_url(),
            "REDIS_URL": self.redis_url,
            "COUNTERFLOW_VAR_DIR": str(self.folder),
            "COUNTERFLOW_COMMAND_LEASE_S": "3",
            "STALL": "1" if stall else "0",
            "STALL_FILE": str(self.stalled),
        }
        words = "-A tests.workers.stalled_worker worker -Q control -P solo --without-gossip --without-mingle -l warning"
        argv = [sys.executable, "-m", "celery", *words.split(), "-n", f"w{len(self.started)}@test"]
        with (self.folder / f"worker{len(self.started)}.log").open("wb") as log:
            self.started.append(subprocess.Popen(argv, cwd=REPO, env=env, stdout=log, stderr=log))
        return self.started[-1]

    def ring(self, command_id: int) -> None:
        self.app.send_task("workers.run_command", args=[command_id], queue="control")


@pytest.fixture
def workers(redis_url: str, tmp_path: Path) -> Iterator[Workers]:
    group = Workers(redis_url, tmp_path)
    yield group
    for process in group.started:
        process.kill()
        process.wait()
    group.app.close()


def test_a_launch_whose_worker_is_killed_half_way_is_completed_once(workers: Workers, settings: Any) -> None:
    job = make_filled_job()
    launch = command_of(job, "launch")
    Command.objects.filter(pk=launch.pk).update(due_at=timezone.now())
    victim = workers.start(stall=True)
    workers.ring(launch.pk)
    wait_until(workers.stalled.exists, within_s=60, what="the first worker has started the run")
    victim.kill()
    victim.wait()
    run = backend_named("local").list("")
    assert len(run) == 1

    workers.start()
    wait_until(lambda: commands_due(now=timezone.now()), within_s=30, what="the lease lapses")
    workers.ring(launch.pk)
    wait_until(
        lambda: Command.objects.get(pk=launch.pk).status == "done", within_s=60, what="the second worker is done"
    )

    launch.refresh_from_db()
    assert launch.num_tries == 2
    assert Attempt.objects.get(job=job).handle == run[0]
    assert Instance.objects.filter(job=job).count() == 1
    assert backend_named("local").list("") == run
