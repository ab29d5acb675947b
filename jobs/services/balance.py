"""Shares of the workers in a step: ordered here, followed by the running trainer with its next step.

The global batch and its order of samples stay; only who does how much of it changes.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from typing import Any

from django.db import transaction

from jobs.errors import Conflict, Invalid
from jobs.models import Attempt, Command, Job
from jobs.services.commands import command_issue
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.resizes import resize_open


@transaction.atomic
def job_rebalance(*, job: Job, shares: Mapping[str, Any], now: dt.datetime, actor: Actor = SYSTEM) -> Command:
    """Order shares: rank -> weight, empty for equal ones. `Invalid` for shares that cannot be, `Conflict` where nobody follows."""
    job = Job.objects.select_for_update().select_related("team").get(pk=job.pk)
    attempt = _attempt_that_can(job)
    checked = shares_checked(shares=shares, num_workers=attempt.world_size)
    number = Command.objects.filter(job=job, kind="rebalance").count() + 1
    command = command_issue(
        job=job,
        kind="rebalance",
        key=f"rebalance:{job.uuid}:{number}",
        args={"shares": checked, "num_workers": attempt.world_size},
        now=now,
        actor=actor,
    )
    words = ", ".join(f"worker {rank} {share:g}" for rank, share in checked.items()) or "equal for all"
    text = f"{job.name}: shares ordered: {words}."
    event_append(team=job.team, job=job, kind="job.rebalance", subject=job, now=now, actor=actor, text=text)
    return command


def shares_checked(*, shares: Mapping[str, Any], num_workers: int) -> dict[str, float]:
    """The shares by rank, all of them. Raises `Invalid`."""
    expected = [str(rank) for rank in range(num_workers)]
    if shares and sorted(shares) != sorted(expected):
        raise _bad(f"Name every worker from 0 to {num_workers - 1}, or none for equal shares.")
    for share in shares.values():
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if not number or not math.isfinite(share) or share < 0:
            raise _bad("Finite numbers from 0.")
    if shares and not any(shares.values()):
        raise _bad("At least one above 0.")
    return {rank: float(shares[rank]) for rank in expected if shares}


def _bad(hint: str) -> Invalid:
    return Invalid("These shares cannot be.", fields={"shares": [hint]})


def _attempt_that_can(job: Job) -> Attempt:
    attempt = job.attempts.order_by("-fence").first()
    if job.status != "running" or attempt is None or attempt.status != "running":
        raise Conflict(f"{job.name} has no running attempt; shares are given to workers that train.", status=job.status)
    if resize_open(job=job) is not None:
        raise Conflict("A resize is under way; shares would not outlive it.")
    if attempt.world_size < 2:
        raise Conflict(f"{job.name} has one worker; there is nobody to share with.", num_workers=1)
    if "rebalance" not in attempt.capabilities:
        raise Conflict("Its trainer does not know how to give its workers unequal shares.")
    return attempt
