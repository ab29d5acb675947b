"""Slurm's commands: run, with their faults in words; and the queue as they show it."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from trainer_client.backends.base import BackendError

TIMEOUT_S = 30.0
AWAY_S = 5.0
PREFIX = "cf-"
# What a repetition cannot mend: the order itself is refused.
REFUSALS = (
    "invalid partition",
    "invalid account",
    "invalid qos",
    "invalid feature",
    "invalid generic resource",
    "unrecognized option",
    "invalid numeric value",
    "requested node configuration is not available",
    "not permitted",
    "access/permission denied",
    "node count specification invalid",
    "more processors requested than permitted",
)
PENDING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
LIVING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """One line of squeue. `tags` come from the comment, `claim` from the name."""

    id: str
    state: str
    reason: str
    claim: str
    folder: str
    nodes: str
    partition: str
    tags: dict[str, str] = field(default_factory=dict)


def slurm(*words: str, text_in: str | None = None) -> str:
    """Run one command; its output. `BackendError` with its first complaint."""
    if shutil.which(words[0]) is None:
        raise BackendError(
            f"{words[0]} is not on PATH: Slurm's client commands must be installed where the workers run"
        )
    try:
        done = subprocess.run(
            words,
            input=text_in or "",
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
            env=_environment(),
        )
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"{words[0]} did not answer within {TIMEOUT_S:g} s") from error
    if done.returncode:
        said = complaint(done.stderr) or f"exit code {done.returncode}"
        raise BackendError(f"{words[0]}: {said}", permanent=any(word in said.lower() for word in REFUSALS))
    return done.stdout


def _environment() -> dict[str, str]:
    """Without defaults that a person set for their own jobs: SBATCH_… and SQUEUE_… would change what is asked."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("SBATCH_", "SQUEUE_", "SCANCEL_"))}


def complaint(stderr: str) -> str:
    """The last line of what a command says, without its name and the word error."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1].split("error: ")[-1][:300] if lines else ""


def comment_of(tags: Mapping[str, str]) -> str:
    return "&".join(f"{quote(key, '')}={quote(value, '')}" for key, value in sorted(tags.items()))


def tags_of(comment: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in comment.split("&") if "=" in part)
    return {unquote(key): unquote(value) for key, _, value in pairs}


class Queue:
    """The jobs of this user, ended ones for as long as Slurm keeps them. One squeue serves all polls of a moment."""

    def __init__(self, fresh_s: float = 1.0) -> None:
        self.fresh_s = fresh_s
        self._seen: list[QueuedJob] = []
        self._seen_at = float("-inf")
        self._away: tuple[float, str] = (float("-inf"), "")

    def forget(self) -> None:
        """What was seen counts no more: something was just changed."""
        self._seen_at = float("-inf")

    def jobs(self) -> list[QueuedJob]:
        """Raises `BackendError`. A controller that is away is asked again after `AWAY_S` only: to ask costs seconds."""
        since, said = self._away
        if time.monotonic() - since < AWAY_S:
            raise BackendError(said)
        if time.monotonic() - self._seen_at > self.fresh_s:
            try:
                self._seen = _squeue()
            except BackendError as error:
                self._away = (time.monotonic(), str(error))
                raise
            self._seen_at = time.monotonic()
        return self._seen

    def job(self, job_id: str, claim: str) -> QueuedJob | None:
        """The job with this number and claim. That it is over, or not known, is believed after a fresh look only."""
        found = _pick(self.jobs(), job_id, claim)
        if found is None or found.state not in PENDING | LIVING:
            self.forget()
            found = _pick(self.jobs(), job_id, claim)
        return found

    def of_claim(self, claim: str) -> list[QueuedJob]:
        self.forget()
        return [job for job in self.jobs() if job.claim == claim]


def _pick(jobs: list[QueuedJob], job_id: str, claim: str) -> QueuedJob | None:
    return next((job for job in jobs if job.id == job_id and job.claim == claim), None)


def _squeue() -> list[QueuedJob]:
    shown = slurm("squeue", "--me", "--noheader", "--all", "--states=all", "--format=%i|%T|%j|%k|%r|%N|%P|%Z")
    jobs = []
    for line in shown.splitlines():
        parts = line.split("|", 7)
        if len(parts) == 8 and parts[2].startswith(PREFIX):
            number, state, name, comment, reason, nodes, partition, folder = parts
            claim = name.removeprefix(PREFIX)
            jobs.append(QueuedJob(number, state, reason, claim, folder, nodes, partition, tags_of(comment)))
    return jobs
