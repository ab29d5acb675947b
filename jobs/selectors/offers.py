"""Which offer a machine is asked of."""

from __future__ import annotations

import uuid
from typing import Any

from django.db.models import QuerySet

from jobs.machines import for_sale, may_use
from jobs.models import Job, Offer
from jobs.selectors.market import offers_with_latest


def offer_to_ask(*, job: Job, is_spot: bool, named: str = "") -> Offer | None:
    """The named offer; else the cheapest that the job file allows and that is said to be there, or the cheapest where none is."""
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
    there = [offer for offer in offers if offer.latest_availability != 0]
    return min(there or offers, key=lambda offer: (offer.latest_price_usd_per_hour, offer.pk), default=None)
