"""The provider of machines as workers see it."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from django.conf import settings

from jobs.services.machines import MachineFacts
from workers.simcloud.client import SimClient


def cloud() -> SimClient:
    """The simulated cloud of this installation; it says where it listens in a file of its folder."""
    return SimClient(Path(settings.VAR_DIR) / "market")


def tag() -> str:
    """Our machines among those of the account."""
    return f"counterflow={settings.DEPLOYMENT}"


def facts_of(record: dict[str, Any]) -> MachineFacts:
    """A provider's record in the domain's words."""
    return MachineFacts(
        provider_id=str(record["id"] or ""),
        status=str(record["status"]),
        started_at=_time(record["started_at"]),
        ended_at=_time(record["ended_at"]),
        notice_at=_time(record["notice_at"]),
        ends_by=_time(record["ends_by"]) if record["notice_at"] is not None else None,
        prices=record["prices"],
    )


def _time(unix_s: float | None) -> dt.datetime | None:
    return None if unix_s is None else dt.datetime.fromtimestamp(unix_s, dt.UTC)
