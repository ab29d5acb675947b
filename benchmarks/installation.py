"""A whole installation of its own for a benchmark: temporary folder, own port, own database and Valkey, all processes."""

from __future__ import annotations

import datetime as dt
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parent.parent


class Installation:
    """Context manager. On entering, `django.setup()` has been called here with the same settings."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.folder = Path(tempfile.mkdtemp(prefix="counterflow-bench-"))
        os.environ.pop("DATABASE_URL", None)
        os.environ.pop("REDIS_URL", None)
        os.environ.update(
            COUNTERFLOW_VAR_DIR=str(self.folder), COUNTERFLOW_PORT=str(port), DJANGO_SETTINGS_MODULE="webapp.settings",
            COUNTERFLOW_LOG_LEVEL="WARNING", OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
        )  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None
        self.added: dict[str, str] = {}

    def on(self, environment: dict[str, str]) -> Installation:
        """Itself, with settings for its processes alone."""
        self.added = environment
        return self

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Installation:
        sys.path.insert(0, str(REPO))
        import django

        django.setup()
        command = [sys.executable, "-m", "webapp.supervisor", "--no-demo"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "start_new_session": True}
        self.process = subprocess.Popen(command, cwd=REPO, env={**os.environ, **self.added}, **quiet)
        self._wait()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def web_pid(self) -> int:
        """Process of the web server."""
        import psutil

        assert self.process is not None
        children = psutil.Process(self.process.pid).children(recursive=True)
        return next(c.pid for c in children if "webapp.serve" in c.cmdline())

    def _wait(self) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.address}/health/live", timeout=5)
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise SystemExit("The installation did not start within three minutes.")


def make_job(num_shards: int, goal_steps: int) -> Any:
    """A running job with shards `shard_0000`, …, in a team with one viewer."""
    from django.contrib.auth import get_user_model
    from django.utils import timezone

    from jobs.models import Dataset, Job, Member, Shard, ShardRevision, Team
    from jobs.services.jobs import job_create

    name = f"bench-{secrets.token_hex(4)}"
    team = Team.objects.create(name=name, slug=name)
    user = get_user_model().objects.create_user(username=name, email=f"{name}@example.org", password=name)
    Member.objects.create(team=team, user=user, role="viewer")
    dataset = Dataset.objects.create(team=team, name=name)
    shards = Shard.objects.bulk_create(
        [
            Shard(dataset=dataset, key=f"shard_{i:04d}", category=f"category_{i * 20 // num_shards:02d}")
            for i in range(num_shards)
        ]
    )
    ShardRevision.objects.bulk_create(
        [ShardRevision(shard=s, number=1, path="none", sha256="0" * 64, num_samples=1, num_bytes=1) for s in shards]
    )
    job = job_create(
        dataset=dataset, name=name, model="tiny:1m", goal_steps=goal_steps, num_workers=4, now=timezone.now()
    )
    Job.objects.filter(pk=job.pk).update(status="running")
    job.refresh_from_db()
    return job


def make_attempt(job: Any, num_workers: int) -> tuple[Any, str]:
    """A running attempt and its token."""
    from django.utils import timezone

    from jobs.models import Attempt
    from jobs.services.attempts import attempt_open

    attempt, secret = attempt_open(job=job, num_workers=num_workers, now=timezone.now())
    Attempt.objects.filter(pk=attempt.pk).update(
        status="running",
        planned_steps=job.goal_steps,
        running_at=timezone.now(),
        heartbeat_at=timezone.now() + dt.timedelta(days=1),
    )
    return attempt, secret


def session_cookie(job: Any) -> str:
    """`sessionid=…` of the job's viewer."""
    from django.contrib.auth import get_user_model
    from django.test import Client

    client = Client()
    client.force_login(get_user_model().objects.get(username=job.name))
    return f"sessionid={client.cookies['sessionid'].value}"
