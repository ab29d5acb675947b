"""Writes about what-ifs by people: asked for with everything that is needed, and cancelled."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

from django.contrib.auth.models import User
from django.db import transaction

from forecasting.series import Series
from jobs.errors import Invalid, LimitReached, StaleWrite
from jobs.models import Job, Offer, Team, WhatIf
from jobs.planes import compress, decompress
from jobs.replay_numbers import DEFAULTS, MAX_POLICIES, MAX_SECONDS, number_faults, seconds_of
from jobs.replays import problem_of
from jobs.services.events import Actor, event_append
from jobs.services.transitions import state_move
from jobs.signals import whatif_queued

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
    if job is not None and job.team_id != team.pk:  # or its name would be read by a team that is not its own
        fault = f"It belongs to another team than {team.name}; leave the team out, or the job."
        raise Invalid("The job is another team's.", fields={"job": [fault]})
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


def whatif_cancel(*, row: WhatIf, now: dt.datetime, actor: Actor) -> WhatIf:
    """Stop it; a worker that is at it notices at its next part. Raises `IllegalMove` when it is over."""
    text = f"What-if {row.name} was cancelled."
    try:
        state_move(row, "cancelled", now=now, actor=actor, text=text, ended_at=now)
    except StaleWrite:  # a worker has just taken it
        row.refresh_from_db(fields=["status", "claim"])
        state_move(row, "cancelled", now=now, actor=actor, text=text, ended_at=now)
    return row
