"""Snapshots as the trainer reports them. The bytes lie where it wrote them; here is the record."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import IntegrityError, transaction

from jobs.errors import StaleWrite
from jobs.models import Attempt, Snapshot
from jobs.services.events import TRAINER, event_append
from jobs.services.transitions import state_move
from jobs.states import NEXT


def snapshot_note(
    *,
    attempt: Attempt,
    name: str,
    kind: str,
    status: str,
    step: int,
    now: dt.datetime,
    uri: str,
    micro_step: int = 0,
    world_size: int = 1,
    num_bytes: int = 0,
    digest: str = "",
    detail: str = "",
    parts: dict[str, str] | None = None,
    save_s: float | None = None,
) -> Snapshot:
    """Record a snapshot or move it on. Repeats, and words that would take it back, change nothing.

    A later attempt may speak of a snapshot of an earlier one: that it is corrupt, or pruned.
    """
    fields: dict[str, Any] = {
        "uri": uri,
        "num_bytes": num_bytes,
        "digest": digest,
        "detail": detail,
        "world_size": world_size,
        "parts": parts or {},
        "save_s": save_s,
    }
    found = Snapshot.objects.filter(job_id=attempt.job_id, name=name).order_by("-id").first()
    if found is None:
        try:
            return _first_word(attempt, name, kind, status, step, micro_step, now, fields)
        except IntegrityError:  # the same word arrived twice at once
            found = Snapshot.objects.get(attempt=attempt, name=name)
    if status in NEXT["Snapshot"][found.status]:
        known = {k: v for k, v in fields.items() if v and (k != "world_size" or attempt.pk == found.attempt_id)}
        try:
            state_move(
                found, status, now=now, actor=TRAINER, text=_sentence(kind, found.place, status, detail), **known
            )
        except StaleWrite:
            found.refresh_from_db()
    return found


@transaction.atomic
def _first_word(
    attempt: Attempt,
    name: str,
    kind: str,
    status: str,
    step: int,
    micro_step: int,
    now: dt.datetime,
    fields: dict[str, Any],
) -> Snapshot:
    snapshot = Snapshot.objects.create(
        job_id=attempt.job_id, attempt=attempt, name=name, kind=kind, status=status, step=step, micro_step=micro_step,
        created_at=now, status_at=now, **fields,
    )  # fmt: skip
    event_append(
        team=attempt.job.team, job=attempt.job, kind=f"snapshot.{status}", subject=snapshot, now=now, actor=TRAINER,
        text=_sentence(kind, snapshot.place, status, fields["detail"]),
    )  # fmt: skip
    return snapshot


def _sentence(kind: str, place: str, status: str, detail: str) -> str:
    what = "Weights" if kind == "weights" else "Snapshot"
    return f"{what} of {place} {status}" + (f": {detail}" if status == "corrupt" and detail else ".")
