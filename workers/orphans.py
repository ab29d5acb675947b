"""Runs that carry our tag and that the database does not know as its own: adopted if their attempt exists, stopped if not.

What is stopped is noted (Fleet, an event). Runs of other installations in the same account carry another tag and are left alone.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, TypeVar

import structlog
from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.utils import timezone

from jobs.clusters import backends
from jobs.models import Attempt, Job
from jobs.providers import has_machines
from jobs.selectors.graces import GRACE_S, job_grace_s
from jobs.services.instances import attempt_place
from jobs.services.orphans import orphan_ended, orphans_gone
from jobs.states import ATTEMPT_LIVE
from trainer_client.backends import Backend, BackendError
from workers.backend_access import backend_named
from workers.celery_app import app
from workers.machine_orphans import machine_orphans_sweep
from workers.periodic import once_per_slot
from workers.rundirs import run_dir

logger = structlog.get_logger(__name__)

Row = TypeVar("Row", bound=Model)
YOUNG = dt.timedelta(minutes=2)  # a launch may be about to note its handle itself


@app.task(name="workers.orphans")
@once_per_slot("orphans")
def orphans() -> None:
    """Look through every backend."""
    for name in backends():
        try:
            orphans_sweep(backend=backend_named(name), now=timezone.now())
        except BackendError as error:
            logger.warning("orphans_unknown", backend=name, error=str(error))
    if has_machines():
        try:
            machine_orphans_sweep(now=timezone.now())
        except BackendError as error:
            logger.warning("orphans_unknown", backend="machines", error=str(error))


def orphans_sweep(*, backend: Backend, now: dt.datetime) -> dict[str, str]:
    """Claim -> adopted or stopped, for each living run of ours that no attempt holds.

    A run whose folder is lost cannot say that it has ended: it is stopped once its attempt is over.
    """
    done, stopped = {}, set()
    for handle in backend.list(f"counterflow={settings.DEPLOYMENT}"):
        claim = str(handle["claim"])
        attempt = _attempt(str(handle["tags"].get("attempt", "")))
        if attempt is None or (not handle.get("folder", True) and attempt.status not in ATTEMPT_LIVE):
            logger.warning("orphan_stopped", backend=backend.name, claim=claim)
            _tell(backend.name, handle, attempt, now)
            backend.stop(handle, job_grace_s(job=attempt.job) if attempt is not None else GRACE_S)
            stopped.add(claim)
            done[claim] = "stopped"
        elif not attempt.handle and now - attempt.created_at > YOUNG:
            attempt_place(attempt=attempt, handle=handle, run_dir=str(run_dir(attempt)))  # the watch does the rest
            done[claim] = "adopted"
    orphans_gone(backend=backend.name, seen=stopped, now=now)
    return done


def _tell(backend: str, handle: dict[str, Any], attempt: Attempt | None, now: dt.datetime) -> None:
    """A row and an event: what nobody holds may have cost for long."""
    claim, tags = str(handle["claim"]), handle["tags"]
    job = attempt.job if attempt is not None else _row(Job.objects.select_related("team"), tags.get("job"))
    why = "its folder is lost and its attempt is over" if attempt is not None else "no attempt of ours started it"
    orphan_ended(backend=backend, claim=claim, detail=f"run {claim} on {backend}, {why}", job=job, now=now)


def _attempt(public_id: str) -> Attempt | None:
    return _row(Attempt.objects.select_related("job__team"), public_id)


def _row(rows: QuerySet[Row], public_id: object) -> Row | None:
    try:
        return rows.filter(uuid=public_id).first() if public_id else None
    except (ValidationError, ValueError):
        return None
