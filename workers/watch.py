"""The watch: looks at every run that lives or still costs, believes its completion marker, and closes what has ended.

The trainer normally says itself how it ended; the watch is for those that could not: killed, crashed, or finished
while the server was away.
"""

from __future__ import annotations

import datetime as dt

import structlog
from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from jobs.errors import DomainError
from jobs.models import Attempt
from jobs.selectors.machines import placed_machines
from jobs.services.stops import stop_order
from jobs.states import ATTEMPT_LIVE, JOB_OVER, NEXT
from trainer_client.backends import BackendError, Observation
from workers.backend_access import backend_named
from workers.celery_app import app
from workers.clusters import cluster_look, heard_from_on, waits_in_queue
from workers.endings import attempt_conclude, is_over
from workers.machines import held_rows, machines_sync
from workers.periodic import once_per_slot
from workers.stalls import stall

logger = structlog.get_logger(__name__)

RECENT = dt.timedelta(minutes=3)  # bought machines stay for the next attempt, so an ended one is watched for so long
LINGER = dt.timedelta(seconds=60)  # a process may live on after its last word, to write its snapshot down
COSTING = tuple(status for status, following in NEXT["Instance"].items() if following)


@app.task(name="workers.watch")
@once_per_slot("watch")
def watch() -> None:
    """One look at everything that runs."""
    attempts_watch(now=timezone.now())


def attempts_watch(*, now: dt.datetime) -> dict[str, str]:
    """Look at each attempt that lives or has a machine left.

    Returns attempt id -> what was seen, for those that were placed.
    """
    placed = Attempt.objects.exclude(handle={}).select_related("job", "job__team")
    recent = Q(ended_at__gt=now - RECENT, placements__instance__status__in=COSTING)
    rows = placed.filter(Q(status__in=ATTEMPT_LIVE) | Q(instances__status__in=COSTING) | recent)
    seen = {}
    for attempt in rows.distinct():
        try:
            seen[str(attempt.uuid)] = attempt_watch(attempt=attempt, now=now)
        except (DomainError, BackendError, OSError, ValueError) as error:
            # One run that cannot be looked at must not hide the others; the next look is in two seconds.
            logger.warning("watch_failed", attempt=str(attempt.uuid), error=str(error))
            seen[str(attempt.uuid)] = "unknown"
    return seen


def attempt_watch(*, attempt: Attempt, now: dt.datetime) -> str:
    """Look at one attempt and act on it. Returns over, stopping, or the state that the backend reports."""
    observed: Observation = backend_named(attempt.job.backend).poll(attempt.handle)
    if is_over(observed):
        _look_at_machines(attempt, now)
        attempt_conclude(attempt=attempt, observed=observed, now=now)
        return "over"
    cluster_look(attempt=attempt, observed=observed, now=now)
    reason, outcome = _why_stop(attempt, observed, now), ""
    if reason is None:
        reason, outcome = stall(attempt), "failed"
    if reason is None:
        return str(observed.state)
    stop_order(attempt=attempt, reason=reason, now=now, outcome=outcome)
    return "stopping"


def _look_at_machines(attempt: Attempt, now: dt.datetime) -> None:
    """What the provider says of the attempt's machines, before its end is judged: was one of them taken?"""
    ids = [machine.pk for machine in placed_machines(attempt=attempt)]
    if ids and attempt.status in ATTEMPT_LIVE:
        machines_sync(rows=held_rows().filter(pk__in=ids), now=now)


def _why_stop(attempt: Attempt, observed: Observation, now: dt.datetime) -> str | None:
    """Why a run that is still there ought not to be, or None."""
    if attempt.job.status in JOB_OVER and attempt.status in ATTEMPT_LIVE:
        return f"The job is {attempt.job.status}."
    if attempt.status not in ATTEMPT_LIVE:
        lingers = attempt.ended_at is not None and now - attempt.ended_at > LINGER
        return "It has said its last word but does not end." if lingers else None
    if attempt.job.attempts.filter(fence__gt=attempt.fence).exists():
        return "A newer attempt exists."
    if waits_in_queue(attempt, observed):
        return None
    silent_since = attempt.heartbeat_at or heard_from_on(attempt)
    if now - silent_since > dt.timedelta(seconds=settings.ATTEMPT_SILENT_S):
        return f"No sign of life since {silent_since:%H:%M:%S} UTC: a rank hangs, or the server cannot be reached from there."
    return None
