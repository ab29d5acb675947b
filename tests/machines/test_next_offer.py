"""Orders at a real provider process that refuses an offer: the next one is asked, in its region, and nothing is left behind."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from jobs.models import Command, Offer, Quote, Team
from jobs.selectors.machines import holdings
from tests.machines.conftest import Provider
from tests.machines.world import machines, order, planned_job, turn, until
from tests.workers.world import script
from workers.machine_access import tag

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def ranks_sleep(runs: Any) -> None:
    runs(script("import time; time.sleep(120)"))


def test_on_demand_that_is_refused_is_asked_of_the_next_offer_and_no_wish_for_the_first_is_left(
    provider: Provider,
) -> None:
    job = planned_job()
    sold_out = Offer.objects.create(
        provider="simulated", region="gone-1", instance_type="v100-1x", is_spot=False, num_gpus=1
    )
    Quote.objects.create(offer=sold_out, at=timezone.now(), price_usd_per_hour="0.01")
    order(job, "procure", 0, 2)
    turn()
    assert {row.offer for row in machines(job)} == {sold_out}
    until(lambda: holdings(job).on_demand == 2, "both run")
    assert {row.status for row in machines(job) if row.offer == sold_out} == {"terminated"}
    assert len(provider.client.machines(tag(), every=True)) == 2


def test_on_demand_beside_spot_stands_in_the_region_of_that_and_not_where_it_is_cheapest(provider: Provider) -> None:
    job = planned_job()
    far = Offer.objects.create(provider="simulated", region="far-1", instance_type="v100-1x", is_spot=False, num_gpus=1)
    Quote.objects.create(offer=far, at=timezone.now(), price_usd_per_hour="0.01")
    spot = Offer.objects.get(is_spot=True)
    command = order(job, "procure", 1, 1)
    Command.objects.filter(pk=command.pk).update(args={"spot": 1, "on_demand": 1, "offer": str(spot.uuid)})
    until(lambda: holdings(job).usable == 2, "both run")
    assert {row.offer.region for row in machines(job) if row.offer} == {"east-1"}


def test_a_move_to_another_offer_takes_the_wishes_for_the_first_back_though_they_fill_the_quota(
    provider: Provider,
) -> None:
    job = planned_job()
    Team.objects.filter(pk=job.team_id).update(max_gpus=2)
    there = Offer.objects.get(is_spot=True)
    gone = Offer.objects.create(
        provider="simulated", region="gone-1", instance_type="v100-1x", is_spot=True, num_gpus=1
    )
    Quote.objects.create(offer=gone, at=timezone.now(), price_usd_per_hour="0.01")
    for offer in (gone, there):
        command = order(job, "migrate", 2)
        Command.objects.filter(pk=command.pk).update(args={"spot": 2, "on_demand": 0, "offer": str(offer.uuid)})
        turn()
    until(lambda: holdings(job).spot == 2, "both run where there are any")
    assert {(row.offer, row.status) for row in machines(job)} == {(gone, "terminated"), (there, "running")}
