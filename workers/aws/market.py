"""What machines on EC2 cost: a feed of spot prices for each region that is bought in, and the on-demand prices of the settings."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from forecasting.feeds.aws import LINUX
from forecasting.feeds.rows import Batch, Observation, OfferKey
from jobs.models import FeedState
from jobs.services.feeds import feed_set
from jobs.services.market import quotes_import
from workers.aws.options import AwsOptions


def feeds_made(*, options: AwsOptions, now: dt.datetime) -> list[str]:
    """Names of the regions' feeds, made or changed to what the settings say."""
    names = []
    for region in options.regions:
        name, wanted = f"aws-{region}", {"region": region, "instance_types": options.types_in(region)}
        names.append(name)
        known = FeedState.objects.filter(name=name).first()
        if known is None or known.settings != wanted:
            feed_set(name=name, kind="aws", settings=wanted, now=now)
    return names


def on_demand_note(*, options: AwsOptions, feed: FeedState, now: dt.datetime) -> None:
    """Store the on-demand prices of the feed's region; what has not changed is stored once."""
    batch = on_demand_batch(options, feed.settings["region"], now)
    quotes_import(batch=batch, feed=feed.name, now=now, changes_only=True)


def on_demand_batch(options: AwsOptions, region: str, now: dt.datetime) -> Batch:
    """On-demand is offered by region. Amazon's price list is not asked: what counts is what the account pays."""
    batch = Batch()
    for kind in options.types_in(region):
        key = OfferKey("aws", region, "", kind, LINUX, False)
        batch.observations.append(Observation(key, now.timestamp(), Decimal(str(options.offers[f"{region}/{kind}"]))))
    batch.num_rows = len(batch.observations)
    return batch.tidy()
