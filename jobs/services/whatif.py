"""Writes about what-ifs: asked for, claimed by one worker under a lease, followed, ended once."""

from __future__ import annotations

import datetime as dt
import json
import secrets
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F

from forecasting.series import Series
from jobs.errors import Invalid, LimitReached, StaleWrite
from jobs.models import Job, Offer, Team, WhatIf
from jobs.planes import compress, decompress
from jobs.replay_numbers import DEFAULTS, MAX_POLICIES, MAX_SECONDS, number_faults, seconds_of
from jobs.replays import problem_of
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.transitions import state_move
from jobs.signals import changed, whatif_queued

LEASE = dt.timedelta(seconds=20)
MAX_TRIES = 3
MAX_WAITING = 10  # of one team


def whatif_create(
    *,
    team: Team,
    user: User,
    series: Series,
    source: str,
    numbers: dict[str, Any],
    policies: list[str],
    now: dt.datetime,
    name: str = "",
    job: Job | None = None,
    offer: Offer | None = None,
) -> WhatIf:
    """Keep the trace and the numbers and ring for a worker. `numbers` may leave out what `jobs.replay_numbers.DEFAULTS` has.

    Raises `Invalid` with the field that is at fault, `LimitReached` when too many of the team wait.
    """
    numbers = {**DEFAULTS, **numbers}
    _check(numbers, policies, series)
    if WhatIf.objects.filter(team=team, status__in=("queued", "running")).count() >= MAX_WAITING:
        raise LimitReached(f"{MAX_WAITING} what-ifs of this team wait already; wait for one to end or cancel one.")
    with transaction.atomic():
        row = WhatIf.objects.create(
            team=team,
            created_by=user,
            job=job,
            offer=offer,
            source=source,
            name=name.strip()[:120] or f"{series.name[:80]}, {numbers['n_max']} GPUs",
            trace_name=series.name[:120],
            trace=compress(series.to_json().encode()),
            notes=list(series.notes),
            numbers=numbers,
            policies=policies,
            status="queued",
            status_at=now,
            created_at=now,
        )
        text = f"What-if {row.name} asked for: {len(policies)} policies over {numbers['starts']} windows."
        event_append(
            team=team, job=job, kind="whatif.queued", subject=row, now=now, actor=Actor.person(user), text=text
        )
        whatif_ring(row)
    return row


def _check(numbers: dict[str, Any], policies: list[str], series: Series) -> None:
    """Raise `Invalid` for what a worker would fail on, while the person is still there."""
    if unknown := sorted(set(numbers) - set(DEFAULTS)):
        raise Invalid("Some numbers are not known.", fields={n: [f"Known are {', '.join(DEFAULTS)}."] for n in unknown})
    if faults := number_faults(numbers):
        raise Invalid("Some numbers cannot be used.", fields=faults)
    _check_policies(policies)
    if (seconds := seconds_of(numbers, policies)) > MAX_SECONDS:
        fault = (
            f"This would take about {seconds / 60:.0f} minutes, and at most {MAX_SECONDS // 60} are given; take fewer "
            "windows, longer slots, or leave AHAP out."
        )
        raise Invalid(fault, fields={"starts": [fault]})
    try:
        problem_of(numbers, series)
    except ValueError as error:
        raise Invalid(str(error)) from error


def _check_policies(policies: list[str]) -> None:
    from forecasting.policies.registry import make_policy

    if not 1 <= len(policies) <= MAX_POLICIES:
        fault = f"Choose 1 to {MAX_POLICIES} policies."
        raise Invalid(fault, fields={"policies": [fault]})
    try:
        names = [make_policy(policy).name for policy in policies]
    except ValueError as error:
        raise Invalid(str(error), fields={"policies": [str(error)]}) from error
    if len(set(names)) < len(names):
        raise Invalid("A policy is named twice.", fields={"policies": ["Name each policy once."]})


def whatif_ring(row: WhatIf) -> None:
    """Ring after commit; the sweep rings again if nobody heard it."""
    transaction.on_commit(lambda: whatif_queued.send_robust(sender=WhatIf, whatif_id=row.pk), robust=True)


def whatif_series(*, row: WhatIf) -> Series:
    """The trace as it was when it was asked for."""
    from forecasting.feeds.availability import read_trace

    return read_trace(json.loads(decompress(row.trace)), row.trace_name)


def whatif_claim(*, whatif_id: int, now: dt.datetime, lease: dt.timedelta = LEASE) -> WhatIf | None:
    """Take one for work, or None if it is not to be had. One runs at a time: commands of jobs need the other workers."""
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


def whatif_cancel(*, row: WhatIf, now: dt.datetime, actor: Actor) -> WhatIf:
    """Stop it; a worker that is at it notices at its next part. Raises `IllegalMove` when it is over."""
    text = f"What-if {row.name} was cancelled."
    try:
        state_move(row, "cancelled", now=now, actor=actor, text=text, ended_at=now)
    except StaleWrite:  # a worker has just taken it
        row.refresh_from_db(fields=["status", "claim"])
        state_move(row, "cancelled", now=now, actor=actor, text=text, ended_at=now)
    return row


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
