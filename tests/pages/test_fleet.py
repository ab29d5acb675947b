"""The page of workers and machines."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from django.utils import timezone

from jobs.models import Worker
from jobs.selectors.fleet import fleet_of
from jobs.services.instances import instance_request, instance_running, instance_terminated
from tests.factories import make_attempt, make_cast, make_job
from tests.pages.world import signed_in

pytestmark = pytest.mark.django_db


def test_slow_and_silent_workers_stand_first_and_are_named():
    cast, now = make_cast(), timezone.now()
    attempt, _ = make_attempt(make_job(cast.team, status="queued", now=now), num_workers=4, now=now)
    for rank, (step_time_s, heard_s) in enumerate([(1.0, 1), (1.02, 2), (1.4, 3), (0.99, 90)]):
        Worker.objects.filter(attempt=attempt, rank=rank).update(
            step_time_s=step_time_s, heartbeat_at=now - dt.timedelta(seconds=heard_s), last_step=7
        )
    found = fleet_of(team=cast.team, now=now)
    assert [line.worker.rank for line in found.workers] == [3, 2, 0, 1]
    assert (found.num_slow, found.num_silent) == (1, 1)
    page = signed_in(cast.viewer).get("/fleet/").content.decode()
    assert "× the median" in page
    assert "silent" in page


def test_a_machine_costs_until_its_end_is_confirmed():
    cast, now = make_cast(), timezone.now()
    attempt, _ = make_attempt(make_job(cast.team, status="queued", now=now), now=now)
    since = now - dt.timedelta(hours=2)
    machine = instance_request(
        attempt=attempt, claim="c1", backend="local", num_gpus=2, price_usd_per_hour=Decimal("1.5"), now=since
    )
    instance_running(instance=machine, now=since)
    found = fleet_of(team=cast.team, now=now)
    assert (found.num_gpus, found.usd_per_hour) == (2, Decimal("1.5"))
    assert found.held[0].cost_usd == Decimal(3)
    instance_terminated(instance=machine, now=now)
    later = fleet_of(team=cast.team, now=now + dt.timedelta(hours=5))
    assert (later.held, later.ended[0].cost_usd) == ([], Decimal(3))


def test_the_number_of_queries_does_not_grow_with_jobs(django_assert_num_queries):
    cast, now = make_cast(), timezone.now()
    for _ in range(4):
        make_attempt(make_job(cast.team, status="queued", now=now), now=now)
    with django_assert_num_queries(3):
        fleet_of(team=cast.team, now=now)
    assert fleet_of(team=make_cast().team, now=now).workers == []
