"""The generated market of a fresh installation: a feed like any other, named as what it is, with four weeks behind it."""

from __future__ import annotations

import datetime as dt

from jobs.demo.market import PROVIDER, generated_batch
from jobs.models import FeedState, Offer
from jobs.services.feeds import feed_set, feed_succeeded
from jobs.services.market import quotes_import

FEED = "generated-market"
SEED = 20261129
PERIOD_S = 60


def demo_market_seed(*, now: dt.datetime, seed: int = SEED) -> FeedState:
    """Add the feed and import its past, unless there is a feed of that name. The clock goes on with it."""
    there = FeedState.objects.filter(name=FEED).first()
    if there is not None:
        return there
    feed = feed_set(name=FEED, kind="generated", settings={"seed": seed}, period_s=PERIOD_S, now=now)
    batch = generated_batch(feed.settings, since=None, now=now)
    counts = quotes_import(batch=batch, feed=FEED, now=now, changes_only=True)
    Offer.objects.filter(provider=PROVIDER, num_gpus=None).update(num_gpus=1)
    feed_succeeded(feed=feed, counts=counts, notes=batch.notes, now=now)
    return feed
