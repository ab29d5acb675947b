"""Writes about feeds: what to ask whom, who polls, when it worked, when to try again."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.db.models import F

from forecasting.feeds.live import backoff_s
from jobs.errors import Invalid
from jobs.models import FeedGap, FeedState
from jobs.services.market import ImportCounts

# What the settings of each kind of feed must hold.
NEEDED = {
    "aws": ("region", "instance_types"),
    "azure": ("regions", "sizes"),
    "csv": ("url", "columns"),
    "generated": ("seed",),
    "simulated": (),
}
SHORTEST_S = {"simulated": 2}  # asks a process on this machine


def feed_set(
    *, name: str, kind: str, settings: Mapping[str, Any], now: dt.datetime, period_s: int = 300, is_enabled: bool = True
) -> FeedState:
    """Add a feed or change it. Raises Invalid when its settings lack something."""
    if kind not in NEEDED:
        raise Invalid(f"There is no feed of kind {kind!r}; there are {', '.join(NEEDED)}.")
    missing = [key for key in NEEDED[kind] if not settings.get(key)]
    if missing:
        raise Invalid(f"A feed of kind {kind} needs {', '.join(missing)}.", fields={"settings": missing})
    state, _ = FeedState.objects.update_or_create(
        name=name,
        defaults={
            "kind": kind,
            "settings": dict(settings),
            "is_enabled": is_enabled,
            "period_s": max(SHORTEST_S.get(kind, 30), period_s),
            "next_try_at": now,
        },
    )
    return state


def feed_claim(*, feed: FeedState, now: dt.datetime, lease_s: float = 300.0) -> bool:
    """True for the one caller that may poll a due feed now; the others see it claimed for `lease_s`."""
    claimed = FeedState.objects.filter(pk=feed.pk, is_enabled=True, next_try_at=feed.next_try_at, next_try_at__lte=now)
    return claimed.update(next_try_at=now + dt.timedelta(seconds=lease_s), last_try_at=now) == 1


def feed_succeeded(*, feed: FeedState, counts: ImportCounts, notes: Sequence[str], now: dt.datetime) -> None:
    """Note a poll that worked and when the next is due; a long silence before it stays known as a gap."""
    if feed.last_success_at and now - feed.last_success_at > feed.patience:
        FeedGap.objects.get_or_create(feed=feed, start=feed.last_success_at, defaults={"end": now})
    FeedState.objects.filter(pk=feed.pk).update(
        last_success_at=now,
        num_failures=0,
        last_error="",
        last_counts=asdict(counts),
        last_notes=list(notes)[:20],
        next_try_at=now + dt.timedelta(seconds=feed.period_s),
    )


def feed_noted(*, feed: FeedState, notes: Sequence[str]) -> None:
    """Add to what its last poll said."""
    if notes:
        feed.refresh_from_db(fields=["last_notes"])
        FeedState.objects.filter(pk=feed.pk).update(last_notes=[*feed.last_notes, *notes][:20])


def feed_failed(*, feed: FeedState, error: str, now: dt.datetime, retry_after_s: float | None = None) -> float:
    """Note a poll that failed; returns the seconds until the next try, which grow with every failure in a row."""
    wait_s = backoff_s(feed.name, feed.num_failures + 1, retry_after_s)
    FeedState.objects.filter(pk=feed.pk).update(
        num_failures=F("num_failures") + 1, last_error=error[:2000], next_try_at=now + dt.timedelta(seconds=wait_s)
    )
    return wait_s
