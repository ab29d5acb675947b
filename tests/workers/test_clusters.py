"""What nodes of a cluster cost from their first process on: by the operator's word, else by what the engine says."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from jobs.models import Attempt, Instance
from jobs.services.instances import instance_request
from tests.factories import NOW, make_attempt, make_job
from trainer_client.backends import Observation
from workers.clusters import cluster_look

pytestmark = pytest.mark.django_db
RUNS = Observation("running", usd_per_hour=2.012, spot=True)


@pytest.fixture
def attempt(settings: Any) -> Attempt:
    """It waits for two nodes that SkyPilot brings up."""
    settings.BACKENDS = ("local", "skypilot")
    made, _ = make_attempt(make_job(backend="skypilot", status="queued"), num_workers=2)
    instance_request(attempt=made, claim="c1", backend="skypilot", num_gpus=0, price_usd_per_hour=Decimal(0), now=NOW)
    return made


def looked_at(attempt: Attempt, observed: Observation) -> Instance:
    cluster_look(attempt=attempt, observed=observed, now=NOW)
    return attempt.instances.get()


def test_nodes_cost_what_the_engine_says_where_the_operator_has_said_nothing(attempt: Attempt, settings: Any) -> None:
    settings.CLUSTER_USD_PER_HOUR = {"skypilot": {"on_demand": 0.0, "spot": 0.0}}
    assert looked_at(attempt, Observation("starting", detail="SkyPilot brings up its nodes")).status == "requested"
    machine = looked_at(attempt, RUNS)
    assert (machine.status, machine.kind, machine.price_usd_per_hour) == ("running", "spot", Decimal("2.012"))


def test_the_price_of_the_settings_counts_before_that_of_the_engine(attempt: Attempt, settings: Any) -> None:
    settings.CLUSTER_USD_PER_HOUR = {"skypilot": {"on_demand": 1.5, "spot": 0.5}}
    assert looked_at(attempt, RUNS).price_usd_per_hour == Decimal("1.0")


def test_without_either_nodes_cost_nothing(attempt: Attempt, settings: Any) -> None:
    settings.CLUSTER_USD_PER_HOUR = {}
    machine = looked_at(attempt, Observation("running"))
    assert (machine.status, machine.kind, machine.price_usd_per_hour) == ("running", "on_demand", 0)
