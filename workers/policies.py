"""The planner's policies on the market's past: a few windows are replayed per tick, and an epoch only looks up whom to follow."""

from __future__ import annotations

import datetime as dt
import time

from django.utils import timezone

from forecasting.policies.registry import PLANNING_POOL, make_policies
from forecasting.simulate import Market
from jobs.plan_facts import market_past
from jobs.selectors.planning import OfferNow, offers_for_planning
from jobs.selectors.policy_weights import weights_due
from jobs.services.market_pasts import pasts_prune
from jobs.services.policy_weights import window_learn
from workers.celery_app import app
from workers.periodic import once_per_slot

BUDGET_S = 1.0  # of a tick, beside orders that wait for a worker; the next tick goes on


@app.task(name="workers.policies")
@once_per_slot("policies")
def policies() -> None:
    """Replay what is due, until the time of a tick is used."""
    policies_tick(now=timezone.now())
    pasts_prune(now=timezone.now())


def policies_tick(*, now: dt.datetime, budget_s: float = BUDGET_S) -> int:
    """Returns how many windows were replayed."""
    due = weights_due(now=now)
    if not due:
        return 0
    offers = {offer.offer.pk: offer for offer in offers_for_planning()}
    on_demand = min((o.usd_per_hour for o in offers.values() if not o.offer.is_spot), default=None)
    pool, markets = make_policies(PLANNING_POOL), {}
    num, end = 0, time.monotonic() + budget_s
    for row in due:
        offer, slot_s = offers.get(row.offer_id), float(row.numbers["slot_s"])
        if offer is None or on_demand is None:
            continue
        if (key := (row.offer_id, slot_s)) not in markets:
            markets[key] = market_on_slots(offer, slot_s, now)
        num += window_learn(row=row, market=markets[key], on_demand_usd_per_hour=on_demand, now=now, pool=pool)
        if time.monotonic() > end:
            break
    return num


def market_on_slots(offer: OfferNow, slot_s: float, now: dt.datetime) -> Market:
    """The offer's past as replays take it; its last slot ends now."""
    past = market_past(offer, slot_s=slot_s, now=now)
    return Market(past.availability, past.price, slot_s, now.timestamp() - len(past.price) * slot_s, str(offer.offer))
