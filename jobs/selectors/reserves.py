"""Whether there is room for one more machine: in the team's quota and in both budgets. Asked under the team's lock."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from jobs.models import Instance, Job, Offer, Quote
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.duds import job_hold_words
from jobs.selectors.quotas import gpus_held
from jobs.selectors.team_budgets import machine_unpaid

RESERVE = dt.timedelta(minutes=1)  # of everything that is held: what it takes to save, leave and give back


def refusal(*, job: Job, offer: Offer, now: dt.datetime) -> str:
    """Why the job may not ask for one more machine of the offer now; empty if it may. Machines that have not stopped yet count."""
    if job.status == "paused":
        return "the job is paused"
    return (
        job_hold_words(job=job)
        or _quota(job, offer)
        or _budget(job, offer, now)
        or machine_unpaid(job=job, usd_per_hour=price_now(offer), now=now)
    )


def _quota(job: Job, offer: Offer) -> str:
    if job.team.max_gpus is None:
        return ""
    held = gpus_held(teams=[job.team_id]).get(job.team_id, 0)
    if held + (offer.num_gpus or 1) <= job.team.max_gpus:
        return ""
    return f"team quota: {held} of {job.team.max_gpus} GPUs are held or on their way"


def _budget(job: Job, offer: Offer, now: dt.datetime) -> str:
    if job.budget_usd is None:
        return ""
    machines = list(Instance.objects.filter(job=job))
    spent = sum((instance_cost_usd(m, start=None, end=now) for m in machines), Decimal(0))
    rate = sum((m.price_usd_per_hour for m in machines if m.status != "terminated"), price_now(offer))
    reserve = rate * Decimal(RESERVE.total_seconds()) / 3600
    if spent + reserve <= job.budget_usd:
        return ""
    return f"budget: ${spent:,.2f} of ${job.budget_usd:,.2f} are spent, and a minute of one more machine is not left"


def price_now(offer: Offer) -> Decimal:
    """The newest price of an offer in USD per hour, 0 where none is known."""
    quotes = Quote.objects.filter(offer=offer, price_usd_per_hour__isnull=False).order_by("-at")
    return quotes.values_list("price_usd_per_hour", flat=True).first() or Decimal(0)
