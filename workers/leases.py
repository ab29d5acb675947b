"""Leases: who works on a row renews its claim while it works, so that a short lease suits long work."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection
from django.utils import timezone

from jobs.errors import StaleWrite

logger = structlog.get_logger(__name__)


def lease_length() -> dt.timedelta:
    """How long a silent holder keeps a row. Short: a living holder renews three times in that time."""
    return dt.timedelta(seconds=settings.COMMAND_LEASE_S)


@contextmanager
def lease_kept(renew: Callable[..., object], what: str) -> Iterator[None]:
    """Calls `renew(now=…, lease=…)` from a thread while the body works, until it raises `StaleWrite`: somebody else has the row."""
    over = threading.Event()
    keeper = threading.Thread(target=_keep, args=(renew, what, over), name="lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        over.set()
        keeper.join(timeout=5)


def _keep(renew: Callable[..., object], what: str, over: threading.Event) -> None:
    lease = lease_length()
    try:
        while not over.wait(lease.total_seconds() / 3):
            with suppress(DatabaseError):  # busy for a moment: the next renewal comes in time
                renew(now=timezone.now(), lease=lease)
    except StaleWrite:
        logger.warning("lease_lost", row=what)  # the next write under the claim will find it out too
    finally:
        if not connection.in_atomic_block:
            connection.close()
