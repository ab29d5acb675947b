"""How long the workers of a job get between SIGTERM and SIGKILL: for the micro-batch under way and a save."""

from __future__ import annotations

from jobs.models import Attempt, Job

GRACE_S = 30.0
LOWEST_S, HIGHEST_S = 5.0, 3600.0  # what a job file may ask for
SAVES = 3  # times its last measured save, since the next may be larger (it holds gradients) and the disk busier


def job_grace_s(*, job: Job, before: Attempt | None = None) -> float:
    """What its file says, else by its last save that was measured, of an attempt earlier than `before` where one is given."""
    given = (job.config.get("snapshot") or {}).get("grace_s")
    if given is not None:
        return float(given)
    saves = job.snapshots.filter(kind="gradient", save_s__isnull=False)
    if before is not None:
        saves = saves.filter(attempt__fence__lt=before.fence)
    last_s = saves.order_by("-id").values_list("save_s", flat=True).first()
    return min(HIGHEST_S, max(GRACE_S, SAVES * (last_s or 0.0)))
