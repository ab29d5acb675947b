"""What the user of a job has to know before it costs money: what becomes of its work when its machines go."""

from __future__ import annotations

from typing import Any

from jobs.machines import is_planned
from jobs.models import Job

ON_SPOT = ("prefer", "only")
OWN_COMMAND = (
    "It brings its own command. If that follows no orders (docs/machines.md), it is stopped when its machines change or it is "
    "paused, with SIGTERM and, after a grace, SIGKILL, and starts again from where its own checkpoints let it, from zero if it "
    "has none."
)


def may_lose_machines(config: dict[str, Any]) -> bool:
    """Whether a job file lets its workers run where the machine may be taken back."""
    return (config.get("resources") or {}).get("spot_policy") in ON_SPOT


def job_promises(*, job: Job) -> list[str]:
    """Sentences for the plan, the answer to a submit, and the history. Empty where nothing is taken away from the job."""
    if job.config.get("run"):
        follows = job.pk is not None and job.attempts.filter(running_at__isnull=False).exclude(capabilities=[]).exists()
        return [OWN_COMMAND] if is_planned(job) and not follows else []
    every = int(job.training.get("snapshot_every") or 0)
    if not may_lose_machines(job.config) or not every:
        return []
    return [
        f"A snapshot every {every:,} steps{_instead_of(job, every)}: a machine lost without notice costs at most those since."
    ]


def _instead_of(job: Job, every: int) -> str:
    """What the file asked for, where that would never have come."""
    said = (job.config.get("snapshot") or {}).get("check_every")
    asked = said if said is not None else (job.config.get("training") or {}).get("snapshot_every")
    return "" if asked in (None, every) else f" (not {asked:,}: it has {job.goal_steps:,})"
