"""Orders to stop an attempt: one at a time, and another one only when the last has had its chance."""

from __future__ import annotations

import datetime as dt

from jobs.models import Attempt, Command
from jobs.services.commands import command_issue

STOP_AGAIN = dt.timedelta(seconds=60)  # a stop that did not work is ordered again after that


def stop_order(*, attempt: Attempt, reason: str, now: dt.datetime, outcome: str = "") -> None:
    """Have the attempt's processes ended. `outcome`: what its end counts as, where its own word says nothing else."""
    earlier = Command.objects.filter(job=attempt.job, kind="stop", args__attempt=str(attempt.uuid)).order_by("-id")
    last = earlier.first()
    if last is not None and (last.status in ("issued", "claimed") or now - last.status_at < STOP_AGAIN):
        return
    args = {"attempt": str(attempt.uuid), "reason": reason}
    command_issue(
        job=attempt.job,
        kind="stop",
        key=f"stop:{attempt.uuid}" + (f":{earlier.count()}" if last else ""),
        args=args | ({"outcome": outcome} if outcome else {}),
        queue="urgent",
        now=now,
    )


def stopped_for(*, attempt: Attempt, outcome: str) -> str:
    """The reason of a stop whose end was to count as `outcome`; empty where there was none."""
    stops = Command.objects.filter(
        job_id=attempt.job_id, kind="stop", args__attempt=str(attempt.uuid), args__outcome=outcome
    )
    reason: str | None = stops.values_list("args__reason", flat=True).first()
    return reason or ""
