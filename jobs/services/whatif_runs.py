"""Writes about what-ifs by workers: claimed by one under a lease, followed, ended once, put back when a worker fell silent."""

from __future__ import annotations

import datetime as dt
import secrets
from typing import Any

from django.db import transaction
from django.db.models import F

from jobs.errors import StaleWrite
from jobs.models import WhatIf
from jobs.services.events import SYSTEM
from jobs.services.transitions import state_move
from jobs.signals import changed

LEASE = dt.timedelta(seconds=20)
MAX_TRIES = 3
KEEP = dt.timedelta(days=30)  # after it has ended


def whatif_claim(*, whatif_id: int, now: dt.datetime, lease: dt.timedelta = LEASE) -> WhatIf | None:
    """Take one for work, or None if it is not to be had. One runs at a time: commands of jobs need the other workers."""
    with transaction.atomic():
        # Whoever takes one waits here for the other: two that looked at the same moment would both see nobody at work.
        unfinished = WhatIf.objects.filter(status__in=("queued", "running")).order_by("pk")
        list(unfinished.select_for_update().values_list("pk", flat=True))
        return _claim(whatif_id, now, lease)


def _claim(whatif_id: int, now: dt.datetime, lease: dt.timedelta) -> WhatIf | None:
    row = WhatIf.objects.select_related("team", "job").filter(pk=whatif_id, status="queued").first()
    if row is None or WhatIf.objects.filter(status="running", lease_until__gt=now).exists():
        return None
    token = secrets.token_hex(16)
    try:
        state_move(
            row,
            "running",
            now=now,
            text=f"What-if {row.name} is computed.",
            claim=token,
            lease_until=now + lease,
            num_tries=F("num_tries") + 1,
            started_at=now,
            num_done=0,
            num_parts=0,
        )
    except StaleWrite:
        return None
    return row


def whatif_renew(*, row: WhatIf, now: dt.datetime, lease: dt.timedelta = LEASE) -> None:
    """Keep holding it. Raises `StaleWrite` if it was cancelled or is another worker's now."""
    _still_mine(row, lease_until=now + lease)


def whatif_progress(
    *, row: WhatIf, num_done: int, num_parts: int, now: dt.datetime, lease: dt.timedelta = LEASE
) -> None:
    """Note how far it is and tell who watches; not an event. Raises `StaleWrite` as `whatif_renew` does."""
    _still_mine(row, lease_until=now + lease, num_done=num_done, num_parts=num_parts)
    changed.send_robust(
        sender=WhatIf,
        team_id=row.team_id,
        job_id=None,
        kind="whatif.progress",
        subject_type="WhatIf",
        subject_uuid=str(row.uuid),
        event_id=0,
    )


def _still_mine(row: WhatIf, **fields: Any) -> None:
    if WhatIf.objects.filter(pk=row.pk, status="running", claim=row.claim).update(**fields) != 1:
        raise StaleWrite("The what-if was cancelled, or another worker has it.")


def whatif_succeed(*, row: WhatIf, result: dict[str, Any], timelines: dict[str, Any], now: dt.datetime) -> None:
    """Store what came out. Raises `StaleWrite` if it was cancelled meanwhile."""
    state_move(
        row,
        "succeeded",
        now=now,
        text=f"What-if {row.name} is done.",
        where={"claim": row.claim},
        result=result,
        timelines=timelines,
        ended_at=now,
        num_done=F("num_parts"),
    )


def whatif_fail(*, row: WhatIf, error: str, now: dt.datetime) -> None:
    """Give it up with a reason that a person can read."""
    state_move(
        row,
        "failed",
        now=now,
        text=f"What-if {row.name} failed: {error[:200]}",
        where={"claim": row.claim},
        error=error[:2000],
        ended_at=now,
    )


def whatifs_prune(*, now: dt.datetime) -> int:
    """Forget those that ended more than `KEEP` ago, with their traces; returns how many. The history keeps that they were."""
    return WhatIf.objects.filter(ended_at__lt=now - KEEP).delete()[0]


def whatif_put_back(*, row: WhatIf, now: dt.datetime) -> None:
    """The worker that held it fell silent: it waits again, or fails after several such ends."""
    if row.num_tries >= MAX_TRIES:
        whatif_fail(row=row, error=f"{row.num_tries} workers ended while they computed it.", now=now)
        return
    text = f"The worker that computed {row.name} fell silent; it starts again."
    where = {"claim": row.claim, "lease_until__lt": now}
    state_move(
        row,
        "queued",
        now=now,
        actor=SYSTEM,
        text=text,
        where=where,
        claim="",
        lease_until=None,
        num_done=0,
        num_parts=0,
    )
