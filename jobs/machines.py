"""What a job says about machines that are bought and given back while it runs. Pure reads of the job file."""

from __future__ import annotations

from django.conf import settings
from django.db.models import Q

from jobs.models import Job

# Providers: what `Offer.provider` and `Instance.backend` say of machines that are bought.
SIMULATED, AWS = "simulated", "aws"
SPOT_POLICIES = ("prefer", "only", "never")  # a job that names one is planned: its machines come and go


def spot_policy(job: Job) -> str:
    """`prefer`, `only` or `never`; empty for a job whose size is given by hand."""
    said = (job.config.get("resources") or {}).get("spot_policy")
    return said if said in SPOT_POLICIES else ""


def provider() -> str:
    """Whose machines are bought: one provider an installation, EC2 where jobs may run there."""
    return AWS if AWS in settings.BACKENDS else SIMULATED


def has_machines() -> bool:
    """Whether machines can be bought here at all."""
    return provider() == AWS or bool(settings.MARKET)


def for_sale() -> Q:
    """Offers that may be bought from. Of EC2 many more may be known, from feeds and files."""
    if provider() == SIMULATED:
        return Q(provider=SIMULATED)
    named = Q(pk__in=[])
    for offer in settings.AWS_OFFERS:
        region, _, instance_type = offer.partition("/")
        named |= Q(region=region, instance_type=instance_type)
    return named & Q(provider=AWS, product="Linux/UNIX")


def planned_backend() -> str:
    """The backend whose jobs run on machines that are bought for them."""
    return AWS if provider() == AWS else "local"


def is_planned(job: Job) -> bool:
    """Whether machines are bought and given back for the job by decisions. A cluster hands out its nodes itself."""
    return job.backend == planned_backend() and bool(spot_policy(job))


# Orders whose arguments are the wanted numbers of machines; the newest one of a job is its target.
ALLOCATIONS = ("procure", "release", "switch_to_on_demand", "migrate", "idle")
# Orders that wait for a trainer to leave or for machines to come, and are looked at again as soon as one does.
MOVES = ("resize", "drain_worker", "preempt", *ALLOCATIONS)
TAKEN = "taken by the provider"  # the detail of a machine that ended though nobody here had asked for it
ORPHAN = "no order of ours made it"  # the detail of a machine that carries our tag and was found at the provider
