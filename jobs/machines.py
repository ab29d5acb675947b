"""What a job says about machines that are bought and given back while it runs. Pure reads of the job file."""

from __future__ import annotations

from django.conf import settings
from django.db.models import Q

from jobs.gpus import gpu_asked, has_gpu
from jobs.models import Job, Offer
from jobs.providers import AWS, SIMULATED, planned_backend, provider

SPOT_POLICIES = ("prefer", "only", "never")  # a job that names one is planned: its machines come and go


def spot_policy(job: Job) -> str:
    """`prefer`, `only` or `never`; empty for a job whose size is given by hand."""
    said = (job.config.get("resources") or {}).get("spot_policy")
    return said if said in SPOT_POLICIES else ""


def declared_size(job: Job) -> int:
    """The workers that `goal.step_time_s` of the job file is for: the most that it may come to."""
    nodes = (job.config.get("resources") or {}).get("nodes") or {}
    return int(nodes.get("max") or job.num_workers)


def regions(job: Job) -> tuple[str, ...]:
    """The regions in which its machines may stand; empty: in any."""
    return tuple((job.config.get("resources") or {}).get("regions") or ())


def max_price(job: Job) -> float | None:
    """USD that a machine may cost an hour, spot or on-demand; None: any price."""
    said = (job.config.get("resources") or {}).get("max_price")
    return None if said is None else float(said)


def may_use(job: Job, offer: Offer, usd_per_hour: float) -> bool:
    """Whether the job file lets a machine of this offer be bought at this price, and all of the machine would be used."""
    where, most = regions(job), max_price(job)
    fits = has_gpu(offer.instance_type, gpu_asked(job)) and not has_many_gpus(offer)
    return fits and (not where or offer.region in where) and (most is None or usd_per_hour <= most)


def has_many_gpus(offer: Offer) -> bool:
    """A machine carries one worker, which uses one GPU; the others would be paid for in vain, and quotas count them."""
    return (offer.num_gpus or 1) > 1


def allowed_words(job: Job) -> str:
    """The same in words, empty where any machine may be bought."""
    most, where = max_price(job), " or ".join(regions(job))
    price = "" if most is None else f"for ${most:,.4g} an hour or less"
    gpu = gpu_asked(job)
    return " ".join(part for part in (f"with {gpu}" if gpu else "", price, f"in {where}" if where else "") if part)


def policy_asked(job: Job) -> str:
    """The policy of the market library that the job file names, or `selector`."""
    return str((job.config.get("resources") or {}).get("policy") or "selector")


def for_sale() -> Q:
    """Offers that may be bought from. Of EC2 many more may be known, from feeds and files."""
    if provider() == SIMULATED:
        return Q(provider=SIMULATED)
    named = Q(pk__in=[])
    for offer in settings.AWS_OFFERS:
        region, _, instance_type = offer.partition("/")
        named |= Q(region=region, instance_type=instance_type)
    return named & Q(provider=AWS, product="Linux/UNIX")


def is_planned(job: Job) -> bool:
    """Whether machines are bought and given back for the job by decisions. A cluster hands out its nodes itself."""
    return job.backend == planned_backend() and bool(spot_policy(job))


# Orders whose arguments are the wanted numbers of machines; the newest one of a job is its target.
ALLOCATIONS = ("procure", "release", "switch_to_on_demand", "migrate", "idle", "preempt_job")
# Orders that wait for a trainer to leave or for machines to come, and are looked at again as soon as one does.
MOVES = ("resize", "drain_worker", "preempt", *ALLOCATIONS)
TAKEN = "taken by the provider"  # the detail of a machine that ended though nobody here had asked for it
GIVEN_BACK = "given back"  # that of one whose end we had asked for
DUD = "no agent ever spoke on it"  # the detail of a machine that was paid for in vain
DUD_LOOKED_AT = f"{DUD}; the job was let go on"  # and a person has looked into it since
ORPHAN = "no order of ours made it"  # the detail of a machine that carries our tag and was found at the provider
