"""Reads about feeds: how each stands, which are due, and what was not believed."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

from jobs.models import FeedState, QuarantinedQuote


@dataclass(frozen=True)
class FeedView:
    """A feed and how long ago it last worked."""

    feed: FeedState
    age_s: float | None
    is_late: bool
    is_due: bool


def feeds_overview(*, now: dt.datetime) -> list[FeedView]:
    """Every feed with the age of its last success; late when it has missed several periods."""
    found = []
    for feed in FeedState.objects.all():
        age_s = (now - feed.last_success_at).total_seconds() if feed.last_success_at else None
        late = feed.is_enabled and (age_s is None or age_s > feed.patience.total_seconds())
        found.append(FeedView(feed, age_s, late, feed.next_try_at <= now))
    return found


def feeds_due(*, now: dt.datetime) -> list[FeedState]:
    """Enabled feeds whose next try has come."""
    return list(FeedState.objects.filter(is_enabled=True, next_try_at__lte=now).order_by("next_try_at"))


def quarantine_recent(*, limit: int = 100) -> list[dict[str, Any]]:
    """The rows last put in quarantine, with reasons."""
    fields = ("feed", "where", "reason", "raw", "num_seen", "first_seen_at", "last_seen_at")
    return list(QuarantinedQuote.objects.values(*fields)[:limit])


def num_quarantined(*, since: dt.datetime) -> int:
    """How many kinds of rows were refused lately."""
    return QuarantinedQuote.objects.filter(last_seen_at__gt=since).count()
