"""Jobs on clusters that hand out their nodes themselves (Slurm, Kubernetes): such a job waits in the cluster's queue, and nothing
is bought for it. Reads of job file and settings."""

from __future__ import annotations

import decimal
import glob

from django.conf import settings

from jobs.machines import spot_policy
from jobs.models import Job
from jobs.providers import AWS


def backends() -> tuple[str, ...]:
    """The names that a job may give as its backend, the usual one first."""
    return tuple(settings.BACKENDS)


def on_cluster(job: Job) -> bool:
    """Not on this machine, nor on machines that were bought for it."""
    return job.backend not in ("local", AWS)


def spot_wish(job: Job) -> str:
    """`never`, `prefer` or `only`: may its workers run where others can take the node back."""
    return (spot_policy(job) or "never") if on_cluster(job) else "never"


def cluster_price(backend: str, *, is_spot: bool, num_workers: int) -> decimal.Decimal:
    """USD an hour for all workers, as the operator says."""
    prices = settings.CLUSTER_USD_PER_HOUR.get(backend, {})
    return decimal.Decimal(str(prices.get("spot" if is_spot else "on_demand", 0.0))) * num_workers


def worker_price(job: Job) -> float:
    """USD an hour for one worker of the job, before it is known which nodes it gets: with `prefer` the dearer ones."""
    if not on_cluster(job):
        return float(settings.LOCAL_USD_PER_HOUR)
    return float(cluster_price(job.backend, is_spot=spot_wish(job) == "only", num_workers=1))


def lowest_worker_price(job: Job) -> float:
    """The same with the cheapest nodes that it may get; 0 where the operator has named no price."""
    prices = [worker_price(job)]
    if spot_wish(job) == "prefer":
        prices.append(float(cluster_price(job.backend, is_spot=True, num_workers=1)))
    return min(prices)


def gpus_of(job: Job, num_workers: int) -> int:
    """GPUs that so many workers of a job of fixed size hold: on this machine one for each, as far as it has them."""
    if on_cluster(job):
        return cluster_gpus(job.backend, num_workers)
    return min(num_workers, len(glob.glob("/dev/nvidia[0-9]*")))


def cluster_gpus(backend: str, num_workers: int) -> int:
    return int(settings.CLUSTER_GPUS_PER_WORKER.get(backend, 0)) * num_workers
