"""The page of workers and machines."""

from __future__ import annotations

import dataclasses
import datetime as dt
from decimal import Decimal

import pytest
from django.utils import timezone

from jobs.models import Instance, Offer, Worker
from jobs.selectors.fleet import fleet_of
from jobs.services.instances import instance_request, instance_running, instance_terminated
from jobs.services.machines import MachineFacts, machine_request, machine_seen
from jobs.services.orphans import orphan_ended
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


def test_a_bought_machine_shows_its_offer_why_there_is_none_and_when_it_is_taken():
    cast, now = make_cast(), timezone.now()
    job = make_job(cast.team, status="queued", now=now)
    offer = Offer.objects.create(
        provider="simulated", region="east-1", zone="east-1a", instance_type="v100-1x", created_at=now
    )
    wished, held = (machine_request(job=job, offer=offer, claim=claim, now=now) for claim in ("c1", "c2"))
    Instance.objects.filter(pk=wished.pk).update(asked={"num": 3, "answer": "no v100-1x to be had"})
    facts = MachineFacts("sim-1", "running", started_at=now, prices=[[now.timestamp(), "1.5"]])
    machine_seen(instance=held, facts=facts, now=now)
    page = signed_in(cast.viewer).get("/fleet/").content.decode()
    assert "east-1a/v100-1x" in page
    assert "no v100-1x to be had, asked 3 times" in page
    assert "badge warn" not in page
    taken = now + dt.timedelta(minutes=2)
    machine_seen(instance=held, facts=dataclasses.replace(facts, notice_at=now, ends_by=taken), now=now)
    assert 'badge warn">under notice' in signed_in(cast.viewer).get("/fleet/").content.decode()
    assert fleet_of(team=cast.team, now=now + dt.timedelta(hours=2)).held[0].cost_usd in (0, 3)


def test_an_end_that_is_not_confirmed_and_what_is_nobodys_stand_there_in_words():
    cast, now = make_cast(), timezone.now()
    job = make_job(cast.team, status="queued", now=now)
    offer = Offer.objects.create(
        provider="simulated", region="east-1", zone="east-1a", instance_type="v100-1x", created_at=now
    )
    asked = now - dt.timedelta(minutes=12)
    machine = machine_request(job=job, offer=offer, claim="c1", now=asked)
    Instance.objects.filter(pk=machine.pk).update(
        status="terminating", status_at=asked, started_at=asked, end_asked={"num": 9, "answer": "it is busy"}
    )
    orphan_ended(backend="slurm", claim="r1", detail="run r1 on slurm, no attempt of ours started it", now=now)
    page = signed_in(cast.viewer).get("/fleet/").content.decode()
    assert "end not confirmed for 12 min, still costs" in page
    assert "it is busy, asked 9 times" in page
    assert "1 end asked for long ago is not confirmed: look where the machine runs." in page
    assert "run r1 on slurm, no attempt of ours started it" in page
    assert "nobody knows whose it is" in page
    told = signed_in(cast.viewer).get("/api/v1/fleet/").json()
    (line,) = told["held"]
    assert (line["is_end_late"], line["end_answer"]) == (True, "it is busy")
    assert [row["claim"] for row in told["orphans"]] == ["r1"]


def test_the_number_of_queries_does_not_grow_with_jobs(django_assert_num_queries):
    cast, now = make_cast(), timezone.now()
    for _ in range(4):
        make_attempt(make_job(cast.team, status="queued", now=now), now=now)
    with django_assert_num_queries(4):
        fleet_of(team=cast.team, now=now)
    assert fleet_of(team=make_cast().team, now=now).workers == []
