"""Reads about augmentations: lists with progress, and one with its batches."""

from __future__ import annotations

from django.db.models import Count, Q, QuerySet

from jobs.access import Viewer, visible
from jobs.models import Augmentation, Job

UNDER_WAY = ("pending", "running", "ready")


def augmentations_listed(*, viewer: Viewer, job: Job | None = None, status: str = "") -> QuerySet[Augmentation]:
    """Newest first, with `num_batches_done` and `num_batches_failed`. One query for any number of rows."""
    rows = visible(viewer, Augmentation.objects.all())
    if job is not None:
        rows = rows.filter(job=job)
    if status:
        rows = rows.filter(status=status)
    return rows.select_related("job", "shard", "decision", "decision__team", "parent", "directive").annotate(
        num_batches_done=Count("batches", filter=Q(batches__status="done")),
        num_batches_failed=Count("batches", filter=Q(batches__status="failed")),
    )


def augmentation_share(augmentation: Augmentation) -> float:
    """How much of the wanted samples is made, 0..1."""
    if augmentation.status in ("ready", "delivered"):
        return 1.0
    return min(1.0, augmentation.num_made / augmentation.num_wanted)
