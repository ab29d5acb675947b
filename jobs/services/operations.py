"""Writes about the service itself: signs of life, and the slots of periodic tasks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction

from jobs.models.operations import Heartbeat, PeriodicRun


def heartbeat_record(*, name: str, now: datetime, data: dict[str, Any] | None = None) -> None:
    """Store that the part called `name` (as `queue:control`) was alive at `now`."""
    Heartbeat.objects.update_or_create(name=name, defaults={"at": now, "data": data or {}})


def periodic_slot_claim(*, name: str, period_s: int, now: datetime) -> bool:
    """True for exactly one caller per slot of `period_s` seconds, however many clocks run.

    Slots are counted in unix time, so daylight saving and time zones do not move or double them.
    """
    slot = int(now.timestamp()) // period_s
    try:
        with transaction.atomic():
            PeriodicRun.objects.create(name=name, slot=slot, at=now)
    except IntegrityError:
        return False
    return True


def periodic_runs_prune(*, now: datetime, keep: timedelta = timedelta(days=2)) -> int:
    """Delete slots older than `keep`; returns how many."""
    return PeriodicRun.objects.filter(at__lt=now - keep).delete()[0]
