"""Reads about the service itself."""

from __future__ import annotations

from datetime import datetime

from jobs.models.operations import Heartbeat


def heartbeat_ages_s(*, now: datetime) -> dict[str, float]:
    """Seconds since the last sign of life of each part that ever gave one."""
    return {name: (now - at).total_seconds() for name, at in Heartbeat.objects.values_list("name", "at")}
