"""Proofs: what an attempt says it has loaded, against what was saved."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import Any

from jobs.errors import StaleWrite
from jobs.models import Attempt, Snapshot
from jobs.selectors.proofs import differing_parts
from jobs.services.events import TRAINER, event_append
from jobs.services.transitions import state_move


def proof_take(*, attempt: Attempt, hello: dict[str, Any], now: dt.datetime) -> Snapshot | None:
    """Store the loaded digest with the snapshot's record and say whether it is the saved one. The snapshot that was resumed from.

    A snapshot that was not loaded as it was saved is `corrupt` from here on: no later attempt may use it.
    """
    snapshot = _resumed_from(attempt, hello)
    loaded = hello.get("loaded_digest") or ""
    if snapshot is None or not loaded:
        return snapshot
    snapshot.loaded_digest, snapshot.loaded_parts, snapshot.loaded_at = loaded, hello.get("loaded_parts") or {}, now
    snapshot.save(update_fields=["loaded_digest", "loaded_parts", "loaded_at"])
    if snapshot.proof == "different":
        _refuse(snapshot, attempt, now)
    elif snapshot.proof == "equal":
        text = f"{attempt} loaded the snapshot of {snapshot.place} exactly as it was saved."
        _say("snapshot.proved", text, snapshot, attempt, now)
    return snapshot


def _resumed_from(attempt: Attempt, hello: dict[str, Any]) -> Snapshot | None:
    """The snapshot that the trainer names, which need not be the one that we expected it to take."""
    named = hello.get("resumed_from")
    if named and (attempt.resumed_from is None or attempt.resumed_from.name != named):
        found = Snapshot.objects.filter(job_id=attempt.job_id, name=named).order_by("-id").first()
        Attempt.objects.filter(pk=attempt.pk).update(resumed_from=found)
        attempt.resumed_from = found
    return attempt.resumed_from


def _refuse(snapshot: Snapshot, attempt: Attempt, now: dt.datetime) -> None:
    parts = ", ".join(differing_parts(snapshot)) or "its digest"
    text = f"Snapshot of {snapshot.place} refused: {attempt} loaded it with other content ({parts}). The one before is used."
    with contextlib.suppress(StaleWrite):  # refused by the trainer in the same moment
        if snapshot.status in ("complete", "verified"):
            state_move(snapshot, "corrupt", now=now, actor=TRAINER, detail=text, text=text)
    _say("snapshot.differs", text, snapshot, attempt, now)


def _say(kind: str, text: str, snapshot: Snapshot, attempt: Attempt, now: dt.datetime) -> None:
    event_append(
        team=attempt.job.team, job=attempt.job, kind=kind, subject=snapshot, now=now, actor=TRAINER, text=text,
        data={"attempt": str(attempt.uuid), "saved": snapshot.digest, "loaded": snapshot.loaded_digest},
    )  # fmt: skip
