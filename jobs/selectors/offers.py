"""Which offer a machine is asked of."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Sequence
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from jobs.machines import for_sale, may_use
from jobs.models import Job, Offer
from jobs.selectors.machines import machines_of, region_in_use
from jobs.selectors.market import offers_with_latest
from jobs.selectors.refusals import offer_refusals


def offer_to_ask(
    *, job: Job, is_spot: bool, named: str = "", region: str | None = None, now: dt.datetime | None = None
) -> Offer | None:
    """The named offer; else the cheapest that the job file allows, those that are there first and those refused lately last.

    On-demand is asked for in `region` alone, where one is given; without, in the region of the machines in use, if it is
    offered there. `now`: the moment at which refusals are looked at, the present one if not given.
    """
    if named:
        try:
            return Offer.objects.filter(for_sale(), uuid=uuid.UUID(named), is_spot=is_spot).first()
        except ValueError:
            return None
    rows: QuerySet[Any] = offers_with_latest(is_spot=is_spot).filter(for_sale())
    offers = [
        offer
        for offer in rows
        if offer.latest_price_usd_per_hour is not None and may_use(job, offer, float(offer.latest_price_usd_per_hour))
    ]
    refused = offers_refused(now=now or timezone.now(), offers=[offer.pk for offer in offers])
    if is_spot:
        there = [offer for offer in offers if offer.latest_availability != 0] or offers
        return min(
            there, key=lambda offer: (offer.pk in refused, offer.latest_price_usd_per_hour, offer.pk), default=None
        )
    if region:
        offers = [offer for offer in offers if offer.region == region]
    home = region or region_in_use(machines_of(job=job).select_related("offer"))
    priced = [(offer, float(offer.latest_price_usd_per_hour)) for offer in offers]
    chosen = on_demand_first(priced, region=home, refused=refused)
    return chosen[0] if chosen is not None else None


def on_demand_first(
    offers: Sequence[tuple[Offer, float]], *, region: str, refused: Collection[int]
) -> tuple[Offer, float] | None:
    """Of on-demand offers with their prices the one to ask: in the region if it is offered there, not refused, the cheapest."""
    there = [one for one in offers if one[0].region == region] or offers
    return min(there, key=lambda one: (one[0].pk in refused, one[1], one[0].pk), default=None)


def offers_refused(*, now: dt.datetime, offers: Collection[int]) -> set[int]:
    """Of these offers those that were refused so lately that others are asked first."""
    return {offer for offer, one in offer_refusals(now=now, offers=offers).items() if one.empty_until > now}
