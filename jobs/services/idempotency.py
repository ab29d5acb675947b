"""The same POST twice does its work once: the first answer is stored with the work, in one transaction.

A crash between the reservation and the answer takes both back, so the repeat starts afresh. Two at the same time meet at the unique
row: the second waits for the first to commit and then gets its answer.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db import IntegrityError, transaction

from jobs.models import IdempotencyKey

if TYPE_CHECKING:
    from django.contrib.auth.models import User

KEEP = dt.timedelta(hours=48)


@dataclass(frozen=True)
class Answer:
    """What was, or is now, answered. `body` is the exact text. `replayed` tells a repeat from the first time."""

    status_code: int
    body: str
    replayed: bool = False


class KeyUsedOtherwise(Exception):
    """The key belongs to another request of the same person."""


def request_digest(*parts: str) -> str:
    """SHA-256 over what makes a request the same request."""
    return hashlib.sha256("\x00".join(parts).encode()).hexdigest()


def idempotent_answer(
    *, user: User, key: str, digest: str, now: dt.datetime, work: Callable[[], tuple[int, str]]
) -> Answer:
    """Do `work` under `key`, or give the answer it gave before. `work` returns status and body; what it raises is not stored.

    Raises `KeyUsedOtherwise` if the key was used for a request with another digest.
    """
    if (before := _stored(user, key, digest)) is not None:
        return before
    try:
        with transaction.atomic():
            row = IdempotencyKey.objects.create(user=user, key=key, request_digest=digest, created_at=now)
            reserved = row.pk
            status_code, body = work()
            IdempotencyKey.objects.filter(pk=reserved).update(status_code=status_code, body=body)
    except IntegrityError:
        # Either another request with the key committed first, or the work itself collided: only the first has an answer.
        if (before := _stored(user, key, digest)) is not None:
            return before
        raise
    return Answer(status_code, body)


def _stored(user: User, key: str, digest: str) -> Answer | None:
    row = IdempotencyKey.objects.filter(user=user, key=key).first()
    if row is None:
        return None
    if row.request_digest != digest:
        raise KeyUsedOtherwise(key)
    assert row.status_code is not None, "row and answer are committed together"
    return Answer(row.status_code, str(row.body), replayed=True)


def idempotency_prune(*, now: dt.datetime, keep: dt.timedelta = KEEP) -> int:
    """Delete keys older than `keep`; returns how many."""
    return IdempotencyKey.objects.filter(created_at__lt=now - keep).delete()[0]
