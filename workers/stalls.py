"""Runs that live and do not get on: a worker that has fallen silent, or no step although all speak.

While one rank hangs the others wait for it in a collective, for half an hour and more, and their reporters go on saying that
they live. So a run is not judged by the last word of any worker, but by that of each, and by its steps. Time is counted up to the
newest report, and from the last gap in all reports on: while the server is away nobody is heard.
"""

from __future__ import annotations

import datetime as dt

from django.conf import settings

from jobs.models import Attempt, Worker


def stall(attempt: Attempt) -> str | None:
    """Why a running attempt is taken for hung, or None. One of which nobody says anything is not judged here."""
    if attempt.status != "running" or attempt.heartbeat_at is None:
        return None
    workers = list(attempt.workers.order_by("rank"))
    return _silent_worker(attempt, workers, attempt.heartbeat_at) or _no_step(attempt, workers, attempt.heartbeat_at)


def _silent_worker(attempt: Attempt, workers: list[Worker], heard_at: dt.datetime) -> str | None:
    """One that has spoken before, while others go on. Steps need all ranks: while they come, it works and only is not heard."""
    for worker in workers:
        if worker.heartbeat_at is None:
            continue
        since = _latest(worker.heartbeat_at, attempt.stepped_at, attempt.heard_since)
        if heard_at - since > dt.timedelta(seconds=settings.WORKER_SILENT_S):
            said = f"Worker {worker.rank} has said nothing since {worker.heartbeat_at:%H:%M:%S} UTC, and no step came since"
            return f"{said}: it hangs, or its machine is gone."
    return None


def _no_step(attempt: Attempt, workers: list[Worker], heard_at: dt.datetime) -> str | None:
    """No step for many times what one takes. Of trainers that say when they evaluate, save or hold, once the first step is done."""
    usual_s = max((worker.step_time_s or 0.0 for worker in workers), default=0.0)
    tells = any("busy" in worker.system for worker in workers)
    if attempt.stepped_at is None or not usual_s or not tells:
        return None
    since = _latest(attempt.stepped_at, attempt.busy_at, attempt.heard_since)
    limit_s = max(settings.STALL_S, settings.STALL_STEPS * usual_s)
    if heard_at - since <= dt.timedelta(seconds=limit_s):
        return None
    return (
        f"No step since {attempt.stepped_at:%H:%M:%S} UTC, where one takes {usual_s:.3g} s, and its workers say that they do"
        " nothing else: a rank hangs."
    )


def _latest(*moments: dt.datetime | None) -> dt.datetime:
    return max(moment for moment in moments if moment is not None)
