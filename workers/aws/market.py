"""What machines on EC2 cost: a feed of spot prices for each region that is bought in; on demand by Amazon's price list.

Where the list has no price, or is not asked, the price of the settings counts; the feed's notes say so.
"""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from forecasting.feeds.aws import LINUX
from forecasting.feeds.rows import Batch, Observation, OfferKey
from jobs.models import FeedState
from jobs.services.feeds import feed_noted, feed_set
from jobs.services.market import quotes_import
from workers.aws.options import AwsOptions
from workers.aws.price_list import Listed, PriceList

PRICES = PriceList()
OFF = 0.01  # share by which the settings may differ from the list before that is said


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
    feed_noted(feed=feed, notes=batch.notes)


def on_demand_batch(options: AwsOptions, region: str, now: dt.datetime) -> Batch:
    """On-demand is offered by region."""
    kinds, batch = options.types_in(region), Batch()
    listed = PRICES.prices(region, kinds, now) if options.price_list else Listed(now, notes=("it is not asked",))
    for kind in kinds:
        told, own = listed.prices.get(kind), options.offers[f"{region}/{kind}"]
        price = told if told is not None or own is None else Decimal(str(own))
        if price is not None:
            key = OfferKey("aws", region, "", kind, LINUX, False)
            batch.observations.append(Observation(key, now.timestamp(), price))
        if note := _said(f"{kind} in {region}", told, own):
            batch.notes.append(note)
    if (options.price_list and listed.notes) or len(batch.observations) < len(kinds):
        batch.notes += listed.notes
    batch.num_rows = len(batch.observations)
    return batch.tidy()


def _said(what: str, told: Decimal | None, own: float | None) -> str:
    """Which price counts, where that is not the list's alone."""
    if told is None and own is None:
        return f"{what} is not sold: it has no price on demand, neither in Amazon's list nor in COUNTERFLOW_AWS_OFFERS"
    if told is None:
        return f"{what} costs ${own:g} an hour on demand by COUNTERFLOW_AWS_OFFERS, not by Amazon's list"
    if own is not None and abs(own / float(told) - 1) > OFF:
        return f"{what} costs ${float(told):g} an hour on demand by Amazon's list; COUNTERFLOW_AWS_OFFERS says ${own:g}"
    return ""
