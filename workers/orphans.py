"""Runs that carry our tag and that the database does not know as its own: adopted if their attempt exists, stopped if not.

Runs of other installations in the same account carry another tag and are left alone.
"""

from __future__ import annotations

import datetime as dt

import structlog
from django.conf import settings
from django.core.exceptions import ValidationError
from django.utils import timezone

from jobs.clusters import backends
from jobs.models import Attempt
from jobs.providers import has_machines
from jobs.selectors.graces import GRACE_S, job_grace_s
from jobs.services.instances import attempt_place
from jobs.states import ATTEMPT_LIVE
from trainer_client.backends import Backend, BackendError
from workers.backend_access import backend_named
from workers.celery_app import app
from workers.machine_orphans import machine_orphans_sweep
from workers.periodic import once_per_slot
from workers.rundirs import run_dir

logger = structlog.get_logger(__name__)

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
    done = {}
    for handle in backend.list(f"counterflow={settings.DEPLOYMENT}"):
        claim = str(handle["claim"])
        attempt = _attempt(str(handle["tags"].get("attempt", "")))
        if attempt is None or (not handle.get("folder", True) and attempt.status not in ATTEMPT_LIVE):
            logger.warning("orphan_stopped", backend=backend.name, claim=claim)
            backend.stop(handle, job_grace_s(job=attempt.job) if attempt is not None else GRACE_S)
            done[claim] = "stopped"
        elif not attempt.handle and now - attempt.created_at > YOUNG:
            attempt_place(attempt=attempt, handle=handle, run_dir=str(run_dir(attempt)))  # the watch does the rest
            done[claim] = "adopted"
    return done


def _attempt(public_id: str) -> Attempt | None:
    try:
        return Attempt.objects.select_related("job").filter(uuid=public_id).first()
    except (ValidationError, ValueError):
        return None
