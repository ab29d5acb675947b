"""What a job file asks of machines, checked: what could not be honoured, or matched by nothing, is refused with what would be."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.models import Min, Q, QuerySet
from django.utils import timezone

from forecasting.policies.registry import make_policy
from jobs.clusters import cluster_gpus
from jobs.gpus import NAME, gpu_words, has_gpu
from jobs.machines import SPOT_POLICIES, for_sale
from jobs.models import Offer, Quote
from jobs.providers import planned_backend

RECENT = dt.timedelta(days=14)  # a price that was seen within it may come again
MAX_WINDOW = 24  # slots that a policy may forecast: an epoch waits for it

Errors = dict[str, list[str]]


def resource_errors(resources: dict[str, Any], backend: str) -> Errors:
    """Field -> what is wrong, for `gpu`, `regions`, `max_price` and `policy`."""
    if backend == planned_backend() and resources.get("spot_policy") in SPOT_POLICIES:
        return _policy_errors(resources) | market_errors(resources)
    hint = f"Where {backend} places workers is its operator's to say; leave this out."
    if backend == planned_backend():
        hint = "Only machines that are bought are chosen by this; leave it out, or name a spot_policy."
    asked = [name for name in ("gpu", "max_price", "regions", "policy") if resources.get(name)]
    errors = {f"resources.{name}": [hint] for name in asked}
    if backend == "slurm" and (gpu := resources.get("gpu")):
        return {k: v for k, v in errors.items() if k != "resources.gpu"} | _slurm_gpu_errors(str(gpu))
    return errors


def _slurm_gpu_errors(gpu: str) -> Errors:
    """Slurm is asked for GPUs of a type with those that its operator gives a worker."""
    if not cluster_gpus("slurm", 1):
        why = "Workers on slurm are given no GPUs here (COUNTERFLOW_SLURM_GPUS_PER_WORKER); leave this out."
        return {"resources.gpu": [why]}
    if not NAME.fullmatch(gpu):
        return {
            "resources.gpu": ["The name of a GPU type as Slurm's gres.conf has it: letters, digits, '_', '.', '-'."]
        }
    return {}


def _policy_errors(resources: dict[str, Any]) -> Errors:
    name = resources.get("policy")
    if name is None or name == "selector":
        return {}
    try:
        policy = make_policy(str(name))
    except ValueError as error:
        return {"resources.policy": [f"{str(error).capitalize()}, or selector."]}
    if getattr(policy, "window", 0) > MAX_WINDOW:
        return {"resources.policy": [f"A window of at most {MAX_WINDOW} slots."]}
    return {}


def market_errors(resources: dict[str, Any]) -> Errors:
    """What no offer could match. Where no offer is known yet nothing is refused."""
    offers = _offers(resources)
    if not offers.exists():
        return {}
    if where := resources.get("regions"):
        there = offers.filter(region__in=where)
        if not there.exists():
            regions = sorted(set(offers.values_list("region", flat=True)))
            return {
                "resources.regions": [f"No machine is offered in {', '.join(where)}; there is {', '.join(regions)}."]
            }
        offers = there
    if gpu := str(resources.get("gpu") or ""):
        there = _with_gpu(offers, gpu)
        if not there.exists():
            types = map(gpu_words, sorted(set(offers.values_list("instance_type", flat=True))))
            return {"resources.gpu": [f"No machine is offered with {gpu}; there is {', '.join(types)}."]}
        offers = there
    if (most := resources.get("max_price")) is not None:
        lowest = _lowest_usd(offers)
        if lowest is not None and float(most) < lowest:
            seen = f"The cheapest of these machines was ${lowest:,.4g} an hour in the last two weeks"
            return {"resources.max_price": [f"{seen}; at ${float(most):,.4g} none could be bought."]}
    return {}


def lowest_usd_per_hour(resources: dict[str, Any]) -> float | None:
    """The lowest price of late of a machine that the job file allows, or None where none is known."""
    offers = _offers(resources)
    if where := resources.get("regions"):
        offers = offers.filter(region__in=where)
    if gpu := str(resources.get("gpu") or ""):
        offers = _with_gpu(offers, gpu)
    return _lowest_usd(offers)


def _with_gpu(offers: QuerySet[Offer], gpu: str) -> QuerySet[Offer]:
    types = set(offers.values_list("instance_type", flat=True))
    return offers.filter(instance_type__in=[name for name in types if has_gpu(name, gpu)])


def _offers(resources: dict[str, Any]) -> QuerySet[Offer]:
    kinds = {"only": Q(is_spot=True), "never": Q(is_spot=False)}.get(str(resources.get("spot_policy")), Q())
    return Offer.objects.filter(for_sale(), kinds)


def _lowest_usd(offers: QuerySet[Offer]) -> float | None:
    """The lowest price of the offers of late, or the last known one where none was told since."""
    quotes = Quote.objects.filter(offer__in=offers, price_usd_per_hour__isnull=False)
    recent = quotes.filter(at__gte=timezone.now() - RECENT).aggregate(low=Min("price_usd_per_hour"))["low"]
    low = recent if recent is not None else quotes.order_by("-at").values_list("price_usd_per_hour", flat=True).first()
    return None if low is None else float(low)
