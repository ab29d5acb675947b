"""What a job says about machines that are bought and given back while it runs. Pure reads of the job file."""

from __future__ import annotations

from jobs.models import Job

PROVIDER = "simulated"  # the only one whose machines can be had so far
SPOT_POLICIES = ("prefer", "only", "never")  # a job that names one is planned: its machines come and go


def spot_policy(job: Job) -> str:
    """`prefer`, `only` or `never`; empty for a job whose size is given by hand."""
    said = (job.config.get("resources") or {}).get("spot_policy")
    return said if said in SPOT_POLICIES else ""


def is_planned(job: Job) -> bool:
    """Whether machines are bought and given back for the job by decisions. A cluster hands out its nodes itself."""
    return job.backend == "local" and bool(spot_policy(job))


# Orders whose arguments are the wanted numbers of machines; the newest one of a job is its target.
ALLOCATIONS = ("procure", "release", "switch_to_on_demand", "migrate", "idle")
# Orders that wait for a trainer to leave or for machines to come, and are looked at again as soon as one does.
MOVES = ("resize", "drain_worker", "preempt", *ALLOCATIONS)
TAKEN = "taken by the provider"  # the detail of a machine that ended though nobody here had asked for it
ORPHAN = "no order of ours made it"  # the detail of a machine that carries our tag and was found at the provider
