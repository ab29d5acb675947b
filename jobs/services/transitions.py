"""The one place where a status changes: compare-and-set, with its event, in one transaction."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import transaction

from jobs.errors import IllegalMove, StaleWrite
from jobs.models import Job, Team
from jobs.models.base import StatefulModel
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.states import NEXT


def owner_of(row: StatefulModel) -> tuple[Team, Job | None]:
    """The team and job that a row belongs to."""
    if isinstance(row, Job):
        return row.team, row
    attempt = getattr(row, "attempt", None)
    job = getattr(row, "job", None) or (attempt.job if attempt else None)
    return (job.team if job else row.team), job  # type: ignore[attr-defined]


def state_move(
    row: StatefulModel,
    to: str,
    *,
    now: dt.datetime,
    actor: Actor = SYSTEM,
    text: str = "",
    data: dict[str, Any] | None = None,
    where: dict[str, Any] | None = None,
    **fields: Any,
) -> None:
    """Move `row` from the status it was read with to `to`, setting `fields` in the same statement.

    `where` adds conditions that must still hold (a claim, for instance). Raises `IllegalMove` if the table has no such move,
    `StaleWrite` if the row has changed since it was read. On success the instance carries the new values.
    """
    model = type(row)
    old = row.status
    if to not in NEXT[model.__name__][old]:
        raise IllegalMove(f"{model.__name__} cannot go from {old} to {to}.", old=old, to=to)
    with transaction.atomic():
        won = model._default_manager.filter(pk=row.pk, status=old, **(where or {})).update(
            status=to, status_at=now, **fields
        )
        if won != 1:
            raise StaleWrite(f"{model.__name__} was no longer {old}.", old=old, to=to)
        team, job = owner_of(row)
        event_append(
            team=team,
            job=job,
            kind=f"{model.__name__.lower()}.{to}",
            subject=row,
            now=now,
            actor=actor,
            text=text,
            data={"from": old, "to": to, **(data or {})},
        )
    row.status, row.status_at = to, now
    for name, value in fields.items():
        if not hasattr(value, "resolve_expression"):
            setattr(row, name, value)
