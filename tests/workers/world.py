"""A small world for the workers' tests: shards with real files, a job, and commands for the real local backend."""

from __future__ import annotations

import datetime as dt
import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jobs.models import Attempt, Command, Dataset, Job, Team
from jobs.services.commands import command_issue
from jobs.services.shards import revision_create, shard_create
from tests.factories import NOW, make_job, make_team
from tests.services import wait_until
from workers.backend_access import backend_named
from workers.endings import is_over
from workers.execute import command_execute

SAMPLES = [
    {"id": f"s{n}", "prompt": f"What does option number {n} of the tool change?", "response": f"It changes part {n}."}
    for n in range(24)
]

# Ends as a trainer does: marker by rename, then the exit code.
FINISH = """
import json, os, sys
def leave(outcome, code=0, **word):
    path = os.path.join(os.environ["COUNTERFLOW_RUN_DIR"], "result.json")
    if os.environ["RANK"] == "0":
        body = {"protocol": 1, "outcome": outcome, "step": 5, "failure_class": None, "message": "", "exit_code": code}
        body["totals"] = {"tokens": 7}
        with open(path + ".new", "w") as file:
            json.dump({**body, **word}, file)
        os.replace(path + ".new", path)
    sys.exit(code)
"""


def script(body: str) -> list[str]:
    """The command of one rank that runs `body`, which may call `leave(outcome, code)`."""
    return [sys.executable, "-c", FINISH + textwrap.dedent(body)]


def make_filled_dataset(
    team: Team, keys: Iterable[str] = ("a", "b"), samples: list[dict[str, Any]] | None = None
) -> Dataset:
    """A dataset whose shards have files."""
    dataset = Dataset.objects.create(team=team, name=f"Filled {Dataset.objects.count()}")
    for key in keys:
        shard = shard_create(dataset=dataset, key=key, now=NOW, category="docs", source="test")
        mine = [{**s, "response": f"{s['response']} ({key})"} for s in (samples or SAMPLES)]
        revision_create(shard=shard, samples=mine, origin="upload", now=NOW)
    return dataset


def make_filled_job(status: str = "queued", *, num_workers: int = 1, **fields: Any) -> Job:
    team = make_team()
    return make_job(team, status=status, dataset=make_filled_dataset(team), num_workers=num_workers, **fields)


def command_of(job: Job, kind: str) -> Command:
    """The newest command of a kind."""
    return job.commands.filter(kind=kind).order_by("-id").first()  # type: ignore[return-value]


def order(job: Job, kind: str, **args: Any) -> Command:
    return command_issue(job=job, kind=kind, key=f"test:{kind}:{Command.objects.count()}", args=args, now=NOW)


def launched(job: Job) -> Attempt:
    """Carry the job's launch out; its newest attempt."""
    assert command_execute(command_of(job, "launch").pk) == "done"
    attempt: Attempt = job.attempts.order_by("-fence").get(handle__has_key="claim")
    return attempt


def ended(attempt: Attempt, within_s: float = 20.0) -> None:
    """Wait until no process of the attempt is left."""
    backend = backend_named("local")
    wait_until(lambda: is_over(backend.poll(attempt.handle)), within_s=within_s, what="the run ends")


def run_dir(attempt: Attempt) -> Path:
    return Path(attempt.run_dir)


def later(seconds: float) -> dt.datetime:
    return NOW + dt.timedelta(seconds=seconds)
