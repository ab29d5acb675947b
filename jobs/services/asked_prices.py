"""On-demand that was asked about at one price is not bought at another: the price is looked at when an answer comes, and before."""

from __future__ import annotations

import datetime as dt
import uuid

from django.db.models import Subquery

from jobs.errors import Outdated
from jobs.models import Decision, Offer, Quote
from jobs.scheduler.on_demand import is_dearer, price_words
from jobs.scheduler.procurement import ASK_KIND
from jobs.selectors.machines import machines_of, region_in_use
from jobs.selectors.offers import offer_to_ask
from jobs.services.plans import PRICE_MOVED, plan_ask


def asked_price_check(*, decision: Decision, now: dt.datetime) -> None:
    """Raise `Outdated` where on-demand has become dearer since it was asked about; the job is planned at once and asked anew.

    One that has become cheaper is bought: it costs less than was approved.
    """
    if decision.kind != ASK_KIND or decision.created_at >= now:
        return
    asked, usd = _asked_usd(decision), _usd_now(decision, now)
    if asked is None or usd is None or not is_dearer(asked, usd):
        return
    plan_ask(job=decision.job, now=now, why=PRICE_MOVED)
    raise Outdated(
        f"{decision} asked about on-demand at ${asked:.2f} an hour each; it costs ${usd:.2f} now. Nothing was bought: it is asked "
        "anew with the price of now.",
        asked_usd_per_hour=asked,
        usd_per_hour=usd,
    )


def asks_look_again(*, now: dt.datetime) -> int:
    """Plan the jobs at once whose on-demand was asked about at a price that has moved since. Returns how many.

    One query where no quote of on-demand is newer than the plans of the jobs that wait for an answer.
    """
    quotes = Quote.objects.filter(offer__is_spot=False, price_usd_per_hour__isnull=False, at__lte=now).order_by("-at")
    waiting = Decision.objects.filter(
        status="proposed", kind=ASK_KIND, job__plan_state__planned_at__lt=Subquery(quotes.values("at")[:1])
    )
    num = 0
    for decision in waiting.select_related("job", "job__team"):
        asked, usd = _asked_usd(decision), _usd_now(decision, now)
        if asked is not None and usd is not None and price_words(asked, usd):
            plan_ask(job=decision.job, now=now, why=PRICE_MOVED)
            num += 1
    return num


def _asked_usd(decision: Decision) -> float | None:
    """USD an hour of a machine, as the card says."""
    asked = decision.evidence.get("on_demand_usd_per_hour")
    return float(asked) if asked else None


def _usd_now(decision: Decision, now: dt.datetime) -> float | None:
    """USD an hour of the machine that would be bought now, chosen as the plan chooses it."""
    region = region_in_use(machines_of(job=decision.job).select_related("offer"))
    offer = offer_to_ask(job=decision.job, is_spot=False, region=region or _region_named(decision), now=now)
    price = getattr(offer, "latest_price_usd_per_hour", None)
    return float(price) if price is not None else None


def _region_named(decision: Decision) -> str:
    """That of the spot offer beside which the machines are to stand; empty where none is named."""
    named = decision.args.get("offer")
    return Offer.objects.filter(uuid=uuid.UUID(named)).values_list("region", flat=True).first() or "" if named else ""
