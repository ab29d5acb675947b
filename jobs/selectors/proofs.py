"""Proofs: does the attempt that took over hold the very state that was saved?"""

from __future__ import annotations

from jobs.models import Attempt, Job, Snapshot
from jobs.states import JOB_OVER


def differing_parts(snapshot: Snapshot) -> list[str]:
    """Names of the parts (parameters, moments, gradients, …) whose loaded digest is not the saved one, as far as both are known."""
    saved, loaded = snapshot.parts, snapshot.loaded_parts
    return sorted(name for name in {*saved, *loaded} if saved.get(name) != loaded.get(name)) if saved and loaded else []


def attempt_proof(*, attempt: Attempt) -> str:
    """equal, different, or none: it resumed from nothing, or one side gave no digest."""
    snapshot = attempt.resumed_from
    return (snapshot.proof if snapshot is not None else "") or "none"


def heir_of(*, attempt: Attempt) -> Attempt | None:
    """The newest later attempt that has said what it loaded, and may go on with it."""
    heirs = attempt.job.attempts.filter(fence__gt=attempt.fence, running_at__isnull=False)
    sound = (
        heir
        for heir in heirs.select_related("resumed_from").order_by("-fence")
        if attempt_proof(attempt=heir) != "different"
    )
    return next(sound, None)


def awaits_proof(*, attempt: Attempt) -> bool:
    """Whether the machines of an attempt that left for another size must stay: until its heir holds what was saved.

    If that cannot be shown, the snapshot before is used, and these machines are the last to have held the state.
    """
    over = (*JOB_OVER, "paused")  # a held job has no heir soon, and machines that wait for one cost
    if attempt.status != "resized" or Job.objects.filter(pk=attempt.job_id, status__in=over).exists():
        return False
    return heir_of(attempt=attempt) is None
