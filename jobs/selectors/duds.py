"""Duds: machines that were paid for and on which no agent ever spoke. What follows from them for an offer and for a job.

An image that does not boot, a mount that fails or an interpreter that is not there makes every machine one. An offer is left alone
for a while after its last, longer with each in a row; a job that was given `MAX_DUDS` in a row gets no more until a person looks.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any

from jobs.machines import DUD
from jobs.models import Instance, Job

MAX_DUDS = 3
PAUSE = dt.timedelta(minutes=1)  # of an offer after its first dud; then twice that, and so on up to:
PAUSE_MAX = dt.timedelta(minutes=30)
RECENT = dt.timedelta(days=1)  # older ones say nothing of an offer
LOOK_BACK = 20  # machines of an offer or of a job


def duds_in_a_row(machines: Iterable[Instance]) -> list[Instance]:
    """Those since the last machine that ran, newest first. Machines that were given back before they could speak do not count."""
    row = []
    for machine in sorted(machines, key=lambda m: -m.pk):
        if machine.running_at is not None:
            break
        if machine.detail == DUD:
            row.append(machine)
    return row


def job_duds(*, job: Job) -> list[Instance]:
    """The same of the machines that were bought for a job. One query."""
    return duds_in_a_row(Instance.objects.filter(job=job, offer__isnull=False).order_by("-id")[:LOOK_BACK])


def hold_words(row: Sequence[Instance]) -> str:
    """Why nothing more is bought for a job with these duds in a row; empty where it is not held."""
    if len(row) < MAX_DUDS:
        return ""
    return (
        f"held: no agent spoke on the last {len(row)} machines bought for it; somebody has to look, then let it go on"
    )


def job_hold_words(*, job: Job) -> str:
    """The same of a job. One query."""
    return hold_words(job_duds(job=job))


def offer_pauses(*, offers: Sequence[int], now: dt.datetime) -> dict[int, dict[str, Any]]:
    """Offer id -> as in `Instance.asked`, why it is too early to ask it again. One query, one more for each offer with duds."""
    recent = Instance.objects.filter(offer__in=offers, detail=DUD, status_at__gt=now - RECENT)
    found = {}
    for offer in set(recent.order_by().values_list("offer_id", flat=True)):
        row = duds_in_a_row(
            Instance.objects.filter(offer=offer, created_at__gt=now - RECENT).order_by("-id")[:LOOK_BACK]
        )
        if not row:
            continue
        again_at = max(m.status_at for m in row) + min(PAUSE_MAX, PAUSE * 2 ** min(len(row) - 1, 10))
        if again_at > now:
            several = f"the last {len(row)} machines" if len(row) > 1 else "the last machine"
            answer = f"no agent spoke on {several} of this offer; it is asked again at {again_at:%H:%M:%S} UTC"
            found[offer] = {"num": len(row), "again_at": again_at.timestamp(), "answer": answer, "is_dud": True}
    return found
