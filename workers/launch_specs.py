"""From a job to the order that a backend gets."""

from __future__ import annotations

import os
import sys

from django.conf import settings

from jobs.clusters import on_cluster, spot_wish
from jobs.gpus import gpu_asked
from jobs.machines import is_planned
from jobs.models import Attempt, Job
from jobs.providers import AWS
from jobs.selectors.graces import job_grace_s
from jobs.selectors.machines import placed_machines
from jobs.services.job_settings import TRAINING_CHOICES, TRAINING_RANGES
from jobs.services.resizes import worker_limits
from jobs.services.snapshot_places import snapshot_url
from trainer_client.backends import LaunchSpec
from workers import rundirs

# Settings of a job that are flags of the launcher under the same name.
FLAGS = (
    "global_batch", "micro_batch", "lr", "seq_len", "seed", "lora", "snapshot_every", "export_every", "eval_every",
    "eval_fraction", "warmup_steps", "weight_decay", "max_grad_norm", "loader_workers",
)  # fmt: skip


def launch_spec(attempt: Attempt) -> LaunchSpec:
    """The order for `attempt`. Equal for every call, so that a second launch finds the first by its claim."""
    folder = rundirs.run_dir(attempt)
    return LaunchSpec(
        claim=attempt.uuid.hex,
        job=str(attempt.job.uuid),
        attempt=str(attempt.uuid),
        command=launch_command(attempt),
        env={
            **same_threads(attempt.job),
            **{str(k): str(v) for k, v in (attempt.job.config.get("env") or {}).items()},
            "COUNTERFLOW_URL": settings.TRAINER_ENDPOINT,
            "COUNTERFLOW_JOB": str(attempt.job.uuid),
            "COUNTERFLOW_ATTEMPT": str(attempt.uuid),
            "COUNTERFLOW_FENCE": str(attempt.fence),
            "COUNTERFLOW_TOKEN_FILE": str(rundirs.token_file(attempt)),
            "COUNTERFLOW_RUN_DIR": str(folder),
            "COUNTERFLOW_SNAPSHOT_DIR": str(rundirs.snapshot_dir(attempt.job)),
            **({"COUNTERFLOW_SNAPSHOT_URL": url} if (url := snapshot_url(attempt.job)) else {}),
            "COUNTERFLOW_REFUSE_SNAPSHOTS": ",".join(refused_snapshots(attempt.job)),
            **({"COUNTERFLOW_PLACES": ",".join(map(str, attempt.places))} if attempt.places else {}),
        },
        num_workers=attempt.world_size,
        run_dir=str(folder),
        grace_s=job_grace_s(job=attempt.job, before=attempt),
        tags={"counterflow": settings.DEPLOYMENT, "job": str(attempt.job.uuid), "attempt": str(attempt.uuid)},
        spot=spot_wish(attempt.job),
        gpu=gpu_asked(attempt.job) if on_cluster(attempt.job) else "",
        machines=[machine.claim for machine in placed_machines(attempt=attempt)] if attempt.job.backend == AWS else (),
    )


def same_threads(job: Job) -> dict[str, str]:
    """Threads of a rank of a local job whose ranks come and go: the same for every number of them.

    A bought machine does not grow when another one leaves, and bits under `exact` depend on the number of threads: so it is if that
    is in the job file, or a number of nodes that it may come to.
    """
    fidelity = (job.config.get("snapshot") or {}).get("fidelity")
    nodes = (job.config.get("resources") or {}).get("nodes") or {}
    is_exact = fidelity == "exact" or (nodes.get("max") and fidelity != "same_world")
    if job.backend != "local" or not (is_planned(job) or is_exact):
        return {}
    most = int(nodes.get("max") or worker_limits(job=job)[1])
    threads = str(max(1, len(os.sched_getaffinity(0)) // most))
    return {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}


def launch_command(attempt: Attempt) -> list[str]:
    """The command line of one rank: the job's own command, or the launcher that comes with us."""
    job = attempt.job
    if job.config.get("run"):
        return [sys.executable, "-m", "workers.job_command"]
    words = [sys.executable, "-m", "trainer_client.launch_finetune"]
    words += ["--model", job.model]
    words += ["--shard_config", str(rundirs.shard_config(job))]
    words += ["--scheduler_endpoint", settings.TRAINER_ENDPOINT]
    words += ["--gradient_snapshot_dir", str(rundirs.snapshot_dir(job))]
    words += ["--max_gpus", str(attempt.world_size), "--steps", str(job.goal_steps)]
    words += ["--run_dir", str(rundirs.run_dir(attempt))]
    for name in FLAGS:
        if (value := job.training.get(name)) is not None:
            whole = TRAINING_RANGES[name][2]  # JSON may say 16.0
            words += [f"--{name}", str(int(value) if whole else value)]
    for name in TRAINING_CHOICES:
        words += [f"--{name}", job.training[name]] if name in job.training else []
    if url := snapshot_url(job):
        words += ["--snapshot_url", url]
    snapshot = job.config.get("snapshot") or {}
    words += ["--fidelity", snapshot["fidelity"]] if "fidelity" in snapshot else []
    words += ["--async_snapshots"] if snapshot.get("async_writes") else []
    if attempt.fence > 1:
        words.append("--resume")
        if refused := refused_snapshots(job):
            words += ["--refuse_snapshots", ",".join(refused)]
    return words


def refused_snapshots(job: Job) -> list[str]:
    """Names of snapshots that no attempt is to go on with."""
    return sorted(job.snapshots.filter(kind="gradient", status="corrupt").values_list("name", flat=True))
