"""A world stands in one region, whatever is held on the way there."""

from __future__ import annotations

import pytest

from jobs.models import Instance, Job, Offer
from jobs.selectors.machines import Target, machines_kept, region_in_use
from tests.planning.world import hold, planned_job

pytestmark = pytest.mark.django_db


def offer(region: str, *, is_spot: bool) -> Offer:
    return Offer.objects.create(
        provider="simulated", region=region, instance_type="sim-1x", is_spot=is_spot, num_gpus=1
    )


def kept(job: Job, spot: int, on_demand: int, named: Offer) -> list[Instance]:
    return machines_kept(job=job, target=Target(spot, on_demand, str(named.uuid)))


def test_what_comes_to_a_new_region_takes_over_once_it_is_as_much_as_what_works_elsewhere() -> None:
    spot, near, far = offer("eu", is_spot=True), offer("eu", is_spot=False), offer("us", is_spot=False)
    job = planned_job()
    old = hold(job, far, 2)
    new = hold(job, spot, 1)
    assert kept(job, 1, 2, spot) == old, "the larger part works on"
    new += hold(job, near, 2)
    assert kept(job, 1, 2, spot) == new


def test_the_region_in_use_is_that_of_what_runs_then_of_what_comes_and_not_of_what_is_refused() -> None:
    job = planned_job()
    spot, sure = hold(job, offer("eu", is_spot=True), 1), hold(job, offer("us", is_spot=False), 1)
    assert region_in_use([*sure, *spot]) == "eu"
    spot[0].status = "requested"
    assert region_in_use([*sure, *spot]) == "us"
    assert region_in_use(spot) == "eu"
    spot[0].asked = {"num": 2}
    assert region_in_use(spot) == ""
