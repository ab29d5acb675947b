"""Computing what-ifs: one worker claims the row, replays the policies, says how far it is, stores what came out."""

from __future__ import annotations

import datetime as dt
import functools
import time
from contextlib import suppress

import structlog
from celery.exceptions import SoftTimeLimitExceeded
from django.db import Error as DatabaseError
from django.utils import timezone

from jobs.errors import StaleWrite
from jobs.models import WhatIf
from jobs.replays import problem_of, timelines_of
from jobs.services.whatif import whatif_series
from jobs.services.whatif_runs import (
    whatif_claim,
    whatif_fail,
    whatif_progress,
    whatif_put_back,
    whatif_renew,
    whatif_succeed,
)
from workers.celery_app import app
from workers.doorbell import WHATIF_TASK, send
from workers.leases import lease_kept, lease_length

logger = structlog.get_logger(__name__)

TELL_EVERY_S = 0.5
RING_AGAIN_S = 15.0
_rung_at: dict[int, float] = {}  # what-if id -> monotonic time of the last ring of this process


@app.task(name=WHATIF_TASK)
def run(whatif_id: int) -> None:
    """Compute one what-if if it can be had; any number of messages for it do it once."""
    row = whatif_claim(whatif_id=whatif_id, now=timezone.now(), lease=lease_length())
    if row is not None:
        whatif_compute(row=row)
        ring_next()


def whatif_compute(*, row: WhatIf) -> str:
    """Replay a claimed what-if. Returns what became of it: succeeded, failed or lost (cancelled, or another's)."""
    with structlog.contextvars.bound_contextvars(whatif=str(row.uuid)):
        try:
            with lease_kept(functools.partial(whatif_renew, row=row), f"what-if {row.uuid}"):
                result, timelines = replayed(row)
            whatif_succeed(row=row, result=result, timelines=timelines, now=timezone.now())
        except StaleWrite:
            logger.info("whatif_lost")
            return "lost"
        except SoftTimeLimitExceeded:
            limit_s = app.conf.task_soft_time_limit
            return _failed(
                row, f"It took longer than {limit_s / 60:.0f} minutes; take fewer windows or leave AHAP out."
            )
        except Exception as error:  # a replay must not take the worker down; a person sees the reason on the page
            logger.exception("whatif_failed")
            return _failed(row, f"{type(error).__name__}: {error}")
    return "succeeded"


def _failed(row: WhatIf, error: str) -> str:
    with suppress(StaleWrite):
        whatif_fail(row=row, error=error, now=timezone.now())
    return "failed"


def replayed(row: WhatIf) -> tuple[dict[str, object], dict[str, object]]:
    """The replay's document and the timelines of a few windows."""
    from forecasting.replay import replay  # compiles its kernels when it is loaded

    job, market, starts = problem_of(row.numbers, whatif_series(row=row))
    found = replay(job, market, starts, row.policies, progress=Teller(row))
    return found.to_json(), timelines_of(found)


class Teller:
    """Progress of a replay: stored and told at most twice a second. Raises `StaleWrite` once it was cancelled."""

    def __init__(self, row: WhatIf) -> None:
        self.row = row
        self.told_at = 0.0

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() - self.told_at < TELL_EVERY_S and done < total:
            return
        self.told_at = time.monotonic()
        with suppress(DatabaseError):  # busy for a moment: the next word on progress comes in time
            whatif_progress(row=self.row, num_done=done, num_parts=total, now=timezone.now(), lease=lease_length())


def ring_next() -> None:
    """Ring for the what-if that has waited longest."""
    waiting = WhatIf.objects.filter(status="queued").order_by("id").values_list("pk", flat=True).first()
    if waiting is not None:
        send(WHATIF_TASK, waiting, "control")


def whatifs_sweep(*, now: dt.datetime) -> None:
    """Put back what a killed worker held, and ring for what waits though nothing runs."""
    for row in WhatIf.objects.select_related("team", "job").filter(status="running", lease_until__lt=now):
        with suppress(StaleWrite):
            whatif_put_back(row=row, now=now)
    if WhatIf.objects.filter(status="running").exists():
        return
    waiting = WhatIf.objects.filter(status="queued").order_by("id").values_list("pk", flat=True).first()
    if waiting is not None and time.monotonic() - _rung_at.get(waiting, -RING_AGAIN_S) >= RING_AGAIN_S:
        _rung_at.clear()
        _rung_at[waiting] = time.monotonic()
        send(WHATIF_TASK, waiting, "control")
