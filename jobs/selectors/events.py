"""Reads about the history."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from jobs.access import Viewer, visible
from jobs.models import Event, Team

NOUNS = (
    "job",
    "attempt",
    "decision",
    "command",
    "directive",
    "augmentation",
    "snapshot",
    "dataset",
    "shard",
    "upload",
    "rule",
    "member",
    "token",
    "team",
)


def events_listed(*, viewer: Viewer, team: Team, noun: str = "", job: Any = None, text: str = "") -> QuerySet[Event]:
    """The team's events, newest first: of a noun (`decision`), of a job (its UUID), whose sentence or actor holds `text`."""
    rows = visible(viewer, Event.objects.filter(team=team)).select_related("job", "user")
    if noun:
        rows = rows.filter(kind__startswith=f"{noun}.")
    if job:
        rows = rows.filter(job__uuid=job)
    if text:
        rows = rows.filter(text__icontains=text) | rows.filter(actor__icontains=text)
    return rows.order_by("-id")
