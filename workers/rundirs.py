"""What a run finds on its disk: shards of the job under `var/runs/<job>/`, token and command in `<attempt>/` below it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings

from jobs.models import Attempt, Job, JobShard
from jobs.services.shards import revision_file


def job_dir(job: Job) -> Path:
    """Everything that a job's runs write."""
    return Path(settings.VAR_DIR) / "runs" / str(job.uuid)


def snapshot_dir(job: Job) -> Path:
    """Shared by the attempts of a job, so that the next one finds what the last one saved."""
    return job_dir(job) / "snapshots"


def run_dir(attempt: Attempt) -> Path:
    return job_dir(attempt.job) / str(attempt.uuid)


def token_file(attempt: Attempt) -> Path:
    return run_dir(attempt) / "token"


def token_write(attempt: Attempt, secret: str) -> None:
    """Store the ingest token for the trainer alone to read (mode 600), whole or not at all."""
    path = token_file(attempt)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = path.with_suffix(f".{os.getpid()}.new")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secret)
    os.replace(draft, path)


def command_write(attempt: Attempt) -> None:
    """Store the command of a job that brings its own, for `workers/job_command.py`."""
    config = attempt.job.config
    if config.get("run"):
        command = {"setup": config.get("setup") or "", "run": config["run"]}
        (run_dir(attempt) / "command.json").write_text(json.dumps(command))


def shard_config(job: Job) -> Path:
    return job_dir(job) / "shard_config.yaml"


def has_journal(job: Job) -> bool:
    """Whether the trainer has written down changes that a later attempt will make again by itself, at their own steps."""
    return any((snapshot_dir(job) / "journal").glob("*.json"))


def shards_write(job: Job) -> Path:
    """Lay out the job's shards as it starts with them, once for all its attempts; returns the path of `shard_config.yaml`.

    A resumed run begins with the same data as the first one and repeats the changes of its journal: only so is the order of
    samples the same as if nothing had happened. Raises `FileNotFoundError` naming the shard whose file the server has lost.
    """
    path = shard_config(job)
    if path.exists():
        return path
    folder = job_dir(job) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    rows = job.job_shards.filter(revision__num_samples__gt=0).select_related("shard", "revision").order_by("index")
    entries = [_entry(row, folder) for row in rows]
    draft = path.with_suffix(f".{os.getpid()}.new")
    draft.write_text(yaml.safe_dump({"shards": entries}, sort_keys=False, allow_unicode=True))
    os.replace(draft, path)
    return path


def _entry(row: JobShard, folder: Path) -> dict[str, Any]:
    shard, revision = row.shard, row.revision
    source = revision_file(revision)
    if not source.is_file():
        raise FileNotFoundError(
            f"The samples of shard {shard.key}, revision {revision.number}, are missing on the server."
        )
    target = folder / f"{row.index:05d}-r{revision.number}.jsonl"
    _link(source, target)
    return {
        "id": shard.key,
        "source": shard.source,
        "type": shard.category,
        "size_mb": round(revision.num_bytes / 1e6, 3),
        "hardness_score": row.hardness_score,
        "path": str(target),
        "weight": row.weight,
        "paused": row.paused,
        "revision": str(revision.uuid),
        "provenance": shard.provenance,
    }


def _link(source: Path, target: Path) -> None:
    """A second name for a file that never changes; a copy where the file system has no hard links."""
    if target.exists():
        return
    with contextlib.suppress(FileExistsError):
        try:
            os.link(source, target)
        except OSError:
            draft = target.with_suffix(f".{os.getpid()}.new")
            shutil.copyfile(source, draft)
            os.replace(draft, target)
