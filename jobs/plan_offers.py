"""Which offers a planned job would use now: spot, and on-demand in the region in which its world is or will be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.machines import allowed_words, has_many_gpus, may_use
from jobs.models import Job
from jobs.scheduler.planner import PlanFacts, SpotQuote
from jobs.selectors.machines import region_in_use
from jobs.selectors.offers import on_demand_first
from jobs.selectors.planning import JobRows, OfferNow

if TYPE_CHECKING:
    from jobs.plan_facts import Epoch

STAY = 0.85  # another spot offer is taken only where it is cheaper by this factor


def spot_quote(epoch: Epoch, rows: JobRows, facts: PlanFacts) -> SpotQuote | None:
    """The spot offer to use: the cheapest with room, unless the job sits in one that is nearly as cheap."""
    if facts.policy == "never":
        return None
    quotes = []
    for offer in _allowed(epoch, rows.job, is_spot=True):
        mine = rows.held_in(offer.offer.pk)
        here = max(spot_left(epoch, rows, offer, facts.n_max), mine)
        rank = (here < facts.n_min, offer.usd_per_hour * (STAY if mine else 1.0), -here, offer.offer.pk)
        quotes.append((rank, SpotQuote(offer.key, offer.name, offer.usd_per_hour, here)))
    return min(quotes)[1] if quotes else None


def spot_left(epoch: Epoch, rows: JobRows, offer: OfferNow, most: int) -> int:
    """Spot machines of an offer that other planned jobs leave to this one. A notice, or a refusal, is newer than any quote."""
    if rows.noticed_in(offer.offer.pk) or epoch.is_empty(offer.offer):
        return 0
    if offer.availability is None:
        return most
    return max(0, offer.availability - epoch.spot_of_others(offer.offer, rows.job))


def spot_refused_words(epoch: Epoch, rows: JobRows, quote: SpotQuote | None) -> str:
    """Which offer the job would rather use, or has to use, and was refused lately; empty where there is none."""
    if quote is None:
        return ""
    for offer in sorted(_allowed(epoch, rows.job, is_spot=True), key=lambda o: (o.usd_per_hour, o.offer.pk)):
        if offer.usd_per_hour > quote.usd_per_hour:
            break
        if epoch.is_empty(offer.offer):
            return f"{offer.name} {epoch.refusals[offer.offer.pk].words}"
    return ""


def on_demand_usd_per_hour(epoch: Epoch, rows: JobRows, spot: SpotQuote | None) -> float | None:
    """The price of the on-demand offer that would be asked: by the machines in use, else where there is spot for the job."""
    region = region_in_use(rows.machines)
    if not region and spot is not None and spot.available:
        region = epoch.offer(spot.offer).offer.region
    allowed = [(one.offer, one.usd_per_hour) for one in _allowed(epoch, rows.job, is_spot=False)]
    refused = [offer.pk for offer, _ in allowed if epoch.is_empty(offer)]
    chosen = on_demand_first(allowed, region=region, refused=refused)
    return chosen[1] if chosen is not None else None


def needs_words(epoch: Epoch, job: Job) -> str:
    """Which offers the job may use, in words; empty: all there are."""
    many = next((o.offer for o in epoch.offers if has_many_gpus(o.offer)), None)
    one_gpu = f"with one GPU ({many} has {many.num_gpus}, and a machine carries one worker)" if many else ""
    return " ".join(part for part in (allowed_words(job), one_gpu) if part)


def _allowed(epoch: Epoch, job: Job, *, is_spot: bool) -> list[OfferNow]:
    return [o for o in epoch.offers if o.offer.is_spot == is_spot and may_use(job, o.offer, o.usd_per_hour)]
