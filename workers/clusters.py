"""Runs on clusters, between the order and the first process: they wait in a queue, cost nothing there, and say why they wait."""

from __future__ import annotations

import datetime as dt
import decimal

from jobs.clusters import cluster_price, on_cluster, spot_wish
from jobs.models import Attempt
from jobs.services.instances import instance_started, instance_waits
from trainer_client.backends import Observation


def waits_in_queue(attempt: Attempt, observed: Observation) -> bool:
    """Nothing of it runs yet, and that is the cluster's choice: silence means nothing."""
    return observed.state == "starting" and on_cluster(attempt.job)


def cluster_look(*, attempt: Attempt, observed: Observation, now: dt.datetime) -> None:
    """Cost begins with the first process, at the price of the nodes that were given."""
    if not on_cluster(attempt.job):
        return
    instance = attempt.instances.filter(status__in=("requested", "provisioning")).first()
    if instance is None:
        return
    if observed.state != "running":
        instance_waits(instance=instance, detail=observed.detail)
        return
    is_spot = observed.spot if observed.spot is not None else spot_wish(attempt.job) == "only"
    price = cluster_price(attempt.job.backend, is_spot=is_spot, num_workers=attempt.world_size)
    if not price and observed.usd_per_hour:  # the operator has said nothing, and the engine knows
        price = decimal.Decimal(str(observed.usd_per_hour))
    instance_started(instance=instance, now=now, kind="spot" if is_spot else "on_demand", price_usd_per_hour=price)


def heard_from_on(attempt: Attempt) -> dt.datetime:
    """Since when something could have been heard of it: its creation, or the end of its wait in a queue."""
    begun = attempt.instances.exclude(started_at=None).values_list("started_at", flat=True)
    return max([attempt.created_at, *(when for when in begun if when)])
