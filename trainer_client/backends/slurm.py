"""Training processes as Slurm jobs: sbatch, squeue, scancel; no accounting database is needed.

A launch is one batch job, a rank is one task of it. Partitions are the market: one for on-demand, one for spot (machines that
others may take back). The run directory lies on a file system that the server and all nodes share. Slurm never starts a
launch a second time (`--no-requeue`): what was taken back is started as a new attempt, which has a fencing token of its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_client.backends.base import BackendError, Handle, LaunchSpec, Observation
from trainer_client.backends.rank_files import claim_locked, conclude, launch_folder, observe, read_json, result_of
from trainer_client.backends.restarts import EXIT_MARGIN_S, Restarting
from trainer_client.backends.slurm_commands import LIVING, PENDING, PREFIX, Queue, QueuedJob, comment_of, slurm
from trainer_client.journal import write_durably

KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "SLURM_CONF")
TAKEN = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
ENDED_WELL = frozenset({"COMPLETED", "FAILED"})  # the ranks themselves say the rest


class SlurmBackend(Restarting):
    """See the module. What is not given comes from `COUNTERFLOW_SLURM_…`; `docs/backends.md` has the list."""

    name = "slurm"

    def __init__(
        self,
        partition: str | None = None,
        spot_partition: str | None = None,
        python: str | None = None,
        arguments: Sequence[str] | None = None,
        gpus_per_worker: int | None = None,
        fresh_s: float = 1.0,
    ) -> None:
        said = os.environ.get
        self.partition = partition if partition is not None else said("COUNTERFLOW_SLURM_PARTITION", "")
        self.spot_partition = (
            spot_partition if spot_partition is not None else said("COUNTERFLOW_SLURM_SPOT_PARTITION", "")
        )
        self.python = python or said("COUNTERFLOW_SLURM_PYTHON") or sys.executable
        extra = shlex.split(said("COUNTERFLOW_SLURM_ARGUMENTS", ""))
        self.arguments = list(arguments if arguments is not None else extra)
        gpus = said("COUNTERFLOW_SLURM_GPUS_PER_WORKER", "0")
        self.gpus_per_worker = gpus_per_worker if gpus_per_worker is not None else int(gpus)
        self._queue = Queue(fresh_s)

    def launch(self, spec: LaunchSpec) -> Handle:
        try:
            with claim_locked(spec) as folder:
                return self._launch_once(spec, folder)
        except OSError as error:
            raise BackendError(f"cannot launch in {spec.run_dir}: {error}") from error

    def _launch_once(self, spec: LaunchSpec, folder: Path) -> Handle:
        """Under the claim's lock: the handle that was noted, the job that a dead caller had submitted, or a new job."""
        handle = read_json(folder / "handle.json")
        if handle is not None:
            return handle
        started = read_json(folder / "started.json")
        earlier = [job.id for job in self._queue.of_claim(spec.claim) if job.folder == str(folder)]
        number = started["id"] if started else (earlier[0] if earlier else self._submit(spec))
        handle = self._handle(spec, folder, number)
        write_durably(folder / "handle.json", json.dumps(handle).encode())
        return handle

    def _submit(self, spec: LaunchSpec) -> str:
        folder = launch_folder(spec)
        script = (
            f"#!/bin/sh\nexec {shlex.join([self.python, '-m', 'trainer_client.backends.slurm_batch', str(folder)])}\n"
        )
        shown = slurm("sbatch", *self._words(spec, folder), text_in=script)
        self._queue.forget()
        return shown.strip().split(";")[0]

    def _words(self, spec: LaunchSpec, folder: Path) -> list[str]:
        grace_s = max(1, math.ceil(spec.grace_s))
        kept = [name for name in KEPT_VARIABLES if name in os.environ]
        words = [
            "--parsable",
            f"--job-name={PREFIX}{spec.claim}",
            f"--comment={comment_of(_tags(spec))}",
            f"--chdir={folder}",
            f"--ntasks={spec.num_workers}",
            f"--output={folder / 'batch.log'}",
            "--open-mode=append",
            "--no-requeue",
            f"--signal=TERM@{grace_s + 30}",  # Slurm's own clock is half a minute coarse
            f"--export={','.join([*kept, f'PYTHONPATH={_python_path()}'])}",
        ]
        if partition := self._partition(spec):
            words.append(f"--partition={partition}")
        if self.gpus_per_worker:
            words.append(f"--gpus-per-task={spec.gpu + ':' if spec.gpu else ''}{self.gpus_per_worker}")
        return words + self.arguments

    def _partition(self, spec: LaunchSpec) -> str:
        """Where it may run; with `prefer` Slurm takes whichever partition starts it first."""
        if spec.spot == "never":
            return self.partition
        if not self.spot_partition:
            if spec.spot == "only":
                raise BackendError("no spot partition is set (COUNTERFLOW_SLURM_SPOT_PARTITION)", permanent=True)
            return self.partition
        both = [self.spot_partition, self.partition] if spec.spot == "prefer" else [self.spot_partition]
        return ",".join(part for part in both if part)

    def _handle(self, spec: LaunchSpec, folder: Path, number: str) -> Handle:
        return {
            "backend": self.name,
            "claim": spec.claim,
            "id": str(number),
            "folder": str(folder),
            "tags": _tags(spec),
            "num_workers": spec.num_workers,
        }

    def poll(self, handle: Handle) -> Observation:
        folder, num_workers = Path(handle["folder"]), int(handle["num_workers"])
        job = self._queue.job(handle["id"], handle["claim"])
        has_started = (folder / "started.json").exists()
        if has_started and job is not None and job.state in PENDING:
            self._queue.forget()  # it may have started since the queue was looked at
            job = self._queue.job(handle["id"], handle["claim"])
        if job is not None and job.state in PENDING:
            if has_started:
                return Observation("lost", detail=f"Slurm took job {job.id} back into its queue ({job.reason})")
            return Observation("starting", detail=f"job {job.id} waits in Slurm's queue: {job.reason}")
        if job is not None and job.state in LIVING:
            workers = observe(folder, num_workers, alive=True)
            if not has_started or not any(worker.pid for worker in workers):
                return Observation("starting", workers, detail=f"job {job.id} starts on {job.nodes}")
            is_spot = bool(self.spot_partition) and job.partition == self.spot_partition
            return Observation("running", workers, result=result_of(folder), detail=_where(job), spot=is_spot)
        said = _end_in_words(handle, job, has_started)
        taken = said if job is not None and job.state in TAKEN else ""
        return dataclasses.replace(conclude(folder, num_workers, said=said), taken=taken)

    def stop(self, handle: Handle, grace_s: float) -> None:
        """The ranks get SIGTERM; the batch step ends them after `grace_s`. A second stop, once that is over, ends the whole job."""
        folder = Path(handle["folder"])
        job = self._queue.job(handle["id"], handle["claim"])
        if job is None or job.state not in PENDING | LIVING:
            return
        order = read_json(folder / "stop.json")
        overdue = order is not None and time.time() > order["asked_at"] + order["grace_s"] + EXIT_MARGIN_S
        if job.state in PENDING or overdue or not folder.is_dir():
            slurm("scancel", "--quiet", job.id)
        else:
            body = {"grace_s": grace_s, "asked_at": time.time()}
            write_durably(folder / "stop.json", json.dumps(body).encode())
            slurm("scancel", "--quiet", "--signal=TERM", job.id)
        self._queue.forget()

    def quotes(self, offers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Slurm has no prices: the offer's own, and as many places as its partitions have idle processors."""
        shown = slurm("sinfo", "--noheader", "--format=%R|%C")
        idle = {name: int(counts.split("/")[1]) for name, _, counts in (row.partition("|") for row in shown.split())}
        total = max(idle.values(), default=0)
        return [
            {"price_usd_per_hour": 0.0} | offer | {"availability": idle.get(str(offer.get("partition", "")), total)}
            for offer in offers
        ]

    def list(self, tag: str = "") -> list[Handle]:
        key, _, value = tag.partition("=")
        self._queue.forget()
        return [
            self._found(job)
            for job in self._queue.jobs()
            if job.state in PENDING | LIVING and (not tag or job.tags.get(key) == value)
        ]

    def _found(self, job: QueuedJob) -> Handle:
        """The handle of a job in the queue: the noted one, or the same made anew from the order."""
        folder = Path(job.folder)
        noted = read_json(folder / "handle.json")
        if noted is not None:
            return noted
        raw = read_json(folder / "spec.json")
        num_workers = raw["num_workers"] if raw else 1
        return {
            "backend": self.name,
            "claim": job.claim,
            "id": job.id,
            "folder": job.folder,
            "tags": job.tags,
            "num_workers": num_workers,
        }


def _tags(spec: LaunchSpec) -> dict[str, str]:
    return {str(k): str(v) for k, v in spec.tags.items()} | {"job": spec.job, "attempt": spec.attempt}


def _where(job: QueuedJob) -> str:
    return f"job {job.id} on {job.nodes}" + (f" ({job.state.lower()})" if job.state != "RUNNING" else "")


def _end_in_words(handle: Handle, job: QueuedJob | None, has_started: bool) -> str:
    number = handle["id"]
    if job is None:
        return f"Slurm no longer knows job {number}, and it left no word"
    if job.state in ENDED_WELL:
        return f"Slurm job {number} ended ({job.state.lower()}); its words are in {handle['folder']}/batch.log"
    started = "" if has_started else " before it started"
    return f"Slurm ended job {number}{started}: {job.state.lower().replace('_', ' ')}, {job.reason}"


def _python_path() -> str:
    """This package first, wherever the caller found it."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    return os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
