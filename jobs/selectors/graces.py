"""How long the workers of a job get between SIGTERM and SIGKILL: for the micro-batch under way and a save."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import OuterRef, Subquery

from jobs.models import Attempt, Job, Snapshot

GRACE_S = 30.0
LOWEST_S, HIGHEST_S = 5.0, 3600.0  # what a job file may ask for
SAVES = 3  # times its last measured save, since the next may be larger (it holds gradients) and the disk busier


def job_grace_s(*, job: Job, before: Attempt | None = None) -> float:
    """What its file says, else by its last save that was measured, of an attempt earlier than `before` where one is given."""
    saves = job.snapshots.filter(kind="gradient", save_s__isnull=False)
    if before is not None:
        saves = saves.filter(attempt__fence__lt=before.fence)
    last_s = saves.order_by("-id").values_list("save_s", flat=True).first()
    return _grace_s(job, last_s)


def job_graces_s(*, jobs: Iterable[Job]) -> dict[int, float]:
    """Job id -> the same. One query."""
    by_id = {job.pk: job for job in jobs}
    saves = Snapshot.objects.filter(job=OuterRef("pk"), kind="gradient", save_s__isnull=False).order_by("-id")
    rows = Job.objects.filter(pk__in=by_id).annotate(last_s=Subquery(saves.values("save_s")[:1]))
    return {pk: _grace_s(by_id[pk], last_s) for pk, last_s in rows.order_by().values_list("pk", "last_s")}


def _grace_s(job: Job, last_s: float | None) -> float:
    given = (job.config.get("snapshot") or {}).get("grace_s")
    return float(given) if given is not None else min(HIGHEST_S, max(GRACE_S, SAVES * (last_s or 0.0)))
