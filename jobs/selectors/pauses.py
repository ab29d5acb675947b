"""What becomes of the attempts of held jobs: a trainer holds, one that follows no order to is stopped."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from django.db.models import Exists, F, Max, OuterRef
from django.db.models.functions import Coalesce

from jobs.models import Attempt, Command, Directive, Job
from jobs.states import ATTEMPT_LIVE

UNHEARD = dt.timedelta(seconds=60)  # trainers report every few seconds: an order not fetched within it reaches nobody
HOLDS_SOON = "its trainer holds at its next control point"
STARTS = "its attempt is being started; it holds then, or is stopped where its command follows no order"


def can_hold(attempt: Attempt) -> bool:
    """Whether an attempt that runs follows the order to hold: what speaks no protocol of ours follows none."""
    return "pause" in attempt.capabilities


def plain_commands(*, now: dt.datetime) -> list[Attempt]:
    """Attempts of held jobs that follow no order to hold: they run and named none that they follow, or are a command of the
    job's own that has said nothing within a minute of its start. Two queries."""
    rows = Attempt.objects.filter(job__status="paused", status__in=ATTEMPT_LIVE).select_related("job", "job__team")
    followed = Attempt.objects.filter(job=OuterRef("job")).exclude(capabilities=[])
    since = Coalesce(Max("instances__started_at"), Max("placements__instance__started_at"), F("created_at"))
    silent = rows.filter(~Exists(followed), status="starting", created_at__lt=now - UNHEARD).exclude(handle={})
    silent = silent.exclude(instances__status__in=("requested", "provisioning"))  # it waits for its place in a cluster
    silent = silent.annotate(since=since).filter(since__lt=now - UNHEARD)
    told = [attempt for attempt in rows.filter(status="running") if not can_hold(attempt)]
    return told + [attempt for attempt in silent if attempt.job.config.get("run")]


def pause_states(*, jobs: Iterable[Job]) -> dict[int, tuple[str, str]]:
    """Paused job -> `stopping` or `pausing`, and what that waits for in words. None for those that hold, or that nothing runs for.

    One query where a job is paused, two more where something still runs.
    """
    paused = [job.pk for job in jobs if job.status == "paused"]
    living = Attempt.objects.filter(job__in=paused, status__in=ATTEMPT_LIVE) if paused else Attempt.objects.none()
    attempts = {attempt.job_id: attempt for attempt in living.order_by("fence")}
    if not attempts:
        return {}
    stops = Command.objects.filter(job__in=attempts, kind="stop", status__in=("issued", "claimed"))
    why = {stop.job_id: str(stop.args.get("reason", "")) for stop in stops}
    told = Directive.objects.filter(attempt__in=attempts.values(), action="pause", status__in=("issued", "delivered"))
    waits = set(told.values_list("attempt__job_id", flat=True))
    found = {}
    for pk, attempt in attempts.items():
        if pk in why:
            found[pk] = ("stopping", why[pk])
        elif attempt.status == "starting":
            found[pk] = ("pausing", STARTS)
        elif pk in waits:
            found[pk] = ("pausing", HOLDS_SOON)
    return found
