"""A planned job on EC2 (moto's server): agents boot, ranks run on the machines, a notice moves the job, the ledger counts."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ConnectTimeoutError
from django.utils import timezone

from jobs.errors import Invalid
from jobs.machines import ORPHAN
from jobs.models import FeedState, Instance, Job, Offer
from jobs.providers import AWS
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.fleet import fleet_of
from jobs.selectors.machines import holdings
from jobs.services.events import SYSTEM
from jobs.services.job_settings import job_file_checked
from jobs.services.jobs import job_cancel
from tests.machines.moto_cloud import REGION, TYPE, MotoCloud
from tests.machines.world import FILE, leaves, machines, order, trains, turn, until
from tests.workers.world import make_filled_job, script
from trainer_client.backends import BackendError
from workers import machine_orphans
from workers.aws import machines as aws_machines
from workers.aws.machines import AwsMachines
from workers.aws.options import AwsOptions
from workers.machine_access import cloud, tag
from workers.machine_orphans import machine_orphans_sweep
from workers.machines import machines_sync, market_look
from workers.provider import ListedInPart

pytestmark = pytest.mark.django_db(transaction=True)
SLEEP = script("import time; print('ready', flush=True); time.sleep(120)")
PLACE = {"region": REGION, "zone": f"{REGION}a", "instance_type": TYPE, "is_spot": True}


@pytest.fixture(autouse=True)
def ranks_sleep(runs: Any, moto_cloud: MotoCloud) -> None:
    runs(SLEEP)


def job_on_ec2() -> Job:
    market_look(now=timezone.now())
    job = make_filled_job(now=timezone.now(), num_workers=2, config=FILE)
    Job.objects.filter(pk=job.pk).update(backend=AWS)
    job.refresh_from_db()
    return job


def test_only_what_the_settings_name_is_for_sale_at_the_prices_that_are_known(settings: Any) -> None:
    market_look(now=timezone.now())
    assert FeedState.objects.get().settings == {"region": REGION, "instance_types": [TYPE]}
    offers = Offer.objects.filter(provider="aws")
    assert {(o.instance_type, o.num_gpus) for o in offers} == {(TYPE, 1)}
    assert {o.is_spot for o in offers} == {True, False}
    dear = offers.get(is_spot=False)
    assert [quote.price_usd_per_hour for quote in dear.quotes.all()] == [Decimal("0.526")]
    settings.AWS_OFFERS = {f"{REGION}/{TYPE}": 0.6}
    later = timezone.now() + dt.timedelta(minutes=10)
    market_look(now=later)
    assert dear.quotes.latest("at").price_usd_per_hour == Decimal("0.6")


def test_a_job_on_ec2_says_how_machines_are_bought() -> None:
    with pytest.raises(Invalid) as refused:
        job_file_checked({}, {}, AWS)
    assert "prefer, only, never" in refused.value.extra["fields"]["resources.spot_policy"][0]
    job_file_checked({"resources": {"spot_policy": "never"}}, {}, AWS)
    with pytest.raises(Invalid):
        job_file_checked({"resources": {"spot_policy": "prefer"}}, {}, "local")


def test_machines_boot_ranks_run_on_them_and_a_notice_moves_the_job(moto_cloud: MotoCloud) -> None:
    job = job_on_ec2()
    order(job, "procure", 1, 1)
    first = trains(job, 2)
    spot, dear = (placement.instance for placement in first.placements.order_by("rank"))
    assert (spot.kind, dear.kind, spot.backend) == ("spot", "on_demand", "aws")
    assert moto_cloud.instance(spot.claim).lifecycle == "spot"
    assert moto_cloud.instance(dear.claim).lifecycle is None
    team = fleet_of(team=job.team, now=timezone.now())
    assert {line.instance.provider_id for line in team.held} == {spot.provider_id, dear.provider_id}

    moto_cloud.interrupt(spot.claim)
    until(lambda: job.commands.filter(kind="preempt").exists(), "the agent has passed the notice on")
    spot.refresh_from_db()
    assert spot.ends_by is not None
    leaves(first)
    second = trains(job, 1)
    assert second.placements.get().instance_id == dear.pk
    until(lambda: spot.refresh_from_db() or spot.status == "terminated", "the machine was given back")

    moto_cloud.kill(dear.claim)  # without a word
    until(lambda: second.refresh_from_db() or second.status == "preempted", "the loss is seen")
    dear.refresh_from_db()
    assert (dear.status, dear.price_usd_per_hour) == ("terminated", Decimal("0.526"))
    held = Decimal((dear.ended_at - dear.started_at).total_seconds())
    assert instance_cost_usd(dear, start=None, end=timezone.now()) == pytest.approx(held * Decimal("0.526") / 3600)
    job.refresh_from_db()
    job_cancel(job=job, now=timezone.now(), actor=SYSTEM)
    until(lambda: not job.instances.exclude(status="terminated").exists(), "nothing is left")
    assert {row["status"] for row in cloud().machines(tag())} == {"terminated"}


def test_what_ec2_refuses_is_said_to_the_job_and_the_offer_is_left_alone_for_a_while(moto_cloud: MotoCloud) -> None:
    job = job_on_ec2()
    moto_cloud.fault("MaxSpotInstanceCountExceeded", 1)
    command = order(job, "procure", 2)
    turn()
    command.refresh_from_db()
    assert "MaxSpotInstanceCountExceeded" in command.error
    assert [row.asked["num"] for row in machines(job)] == [1, 1]  # one was refused, the other did not ask
    assert cloud().machines(tag()) == []
    until(lambda: holdings(job).spot == 2, "both came after the pause")


def test_a_machine_that_is_nobodys_is_adopted_and_ended(moto_cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_on_ec2()
    key, _, value = tag().partition("=")
    cloud().create("lost", **PLACE, tags={key: value, "team": str(job.team.uuid), "job": str(job.uuid)})
    monkeypatch.setattr(machine_orphans, "GRACE", dt.timedelta(0))
    now = timezone.now() + dt.timedelta(seconds=5)
    assert machine_orphans_sweep(now=now) == {"lost": "adopted"}
    row = Instance.objects.get(claim="lost")
    assert (row.detail, row.offer.zone, row.kind) == (ORPHAN, f"{REGION}a", "spot")
    machine_orphans_sweep(now=now + dt.timedelta(seconds=5))
    until(lambda: row.refresh_from_db() or row.status == "terminated", "it was ended")


def test_all_regions_are_listed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(3, timeout=30)

    class Client:
        def get_paginator(self, _: str) -> Client:
            return self

        def paginate(self, **_: Any) -> list[dict[str, Any]]:
            both.wait()
            return [{"Reservations": []}]

    monkeypatch.setattr("workers.aws.machines.ec2", lambda region: Client())
    offers = dict.fromkeys((f"{region}/{TYPE}" for region in ("eu-west-1", "us-east-1", "us-west-2")), 1.0)
    options = AwsOptions(offers, "template", tmp_path, "python3")
    assert AwsMachines(options, "ours").machines("job=1") == []
    assert not both.broken


class Silent:
    """A client of a region that does not answer, or only says so in the end; counts how often it was asked."""

    def __init__(self) -> None:
        self.num_asked = 0
        self.over: threading.Event | None = None

    def get_paginator(self, _: str) -> Silent:
        return self

    def paginate(self, **_: Any) -> list[dict[str, Any]]:
        self.num_asked += 1
        if self.over is not None:
            self.over.wait(60)
        raise ConnectTimeoutError(endpoint_url="https://ec2.eu-west-1.amazonaws.com")

    def run_instances(self, **_: Any) -> dict[str, Any]:
        raise AssertionError("nothing is bought there")


@pytest.fixture
def silent(moto_cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> Silent:
    """Machines may be bought in a second region too, which does not answer."""
    other, real = Silent(), aws_machines.ec2
    monkeypatch.setattr(aws_machines, "ec2", lambda region: other if region == "eu-west-1" else real(region))
    monkeypatch.setattr(aws_machines, "_resting", {})
    return other


def test_a_region_that_does_not_answer_keeps_no_machine_of_another_from_its_end(silent: Silent, settings: Any) -> None:
    job = job_on_ec2()
    order(job, "procure", 1)
    trains(job, 1)
    (here,) = machines(job, "running")
    settings.AWS_OFFERS = {**settings.AWS_OFFERS, f"eu-west-1/{TYPE}": 0.6}
    there = Instance.objects.get(pk=here.pk)
    there.pk, there.uuid, there.claim, there.provider_id, there.job = (
        None,
        uuid.uuid4(),
        "elsewhere",
        "i-elsewhere",
        None,
    )
    there.save()  # a machine in the other region that is to end, and of which nothing is known now
    order(job, "procure", 1, 1)
    until(lambda: {m.kind for m in machines(job, "running")} == {"spot", "on_demand"}, "another is bought")
    job.refresh_from_db()
    job_cancel(job=job, now=timezone.now(), actor=SYSTEM)
    until(lambda: {m.status for m in machines(job)} == {"terminated"}, "their ends are asked for and confirmed")
    there.refresh_from_db()
    assert there.status != "terminated", "nothing follows for a machine from a list that failed"
    assert silent.num_asked > 0
    with pytest.raises(ListedInPart) as part:
        cloud().machines(tag())
    assert here.claim in {record["token"] for record in part.value.records}
    with pytest.raises(ListedInPart):
        machine_orphans_sweep(now=timezone.now())


def test_where_no_region_answers_nothing_is_listed(silent: Silent, settings: Any, tmp_path: Path) -> None:
    none = AwsMachines(AwsOptions({f"eu-west-1/{TYPE}": 0.6}, "template", tmp_path, "python3"), "ours")
    with pytest.raises(BackendError, match="does not answer") as error:
        none.machines("job=1")
    assert not isinstance(error.value, ListedInPart)


def test_a_region_that_hangs_is_waited_for_once_and_then_left_alone_for_a_while(
    silent: Silent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent.over, now = threading.Event(), [0.0]
    monkeypatch.setattr(aws_machines, "monotonic", lambda: now[0])
    monkeypatch.setattr(aws_machines, "LIST_S", 5.0)
    offers = {f"{REGION}/{TYPE}": 0.5, f"eu-west-1/{TYPE}": 0.6}
    both = AwsMachines(AwsOptions(offers, "template", tmp_path, "python3"), "ours")
    try:
        for _ in range(3):
            with pytest.raises(ListedInPart, match="eu-west-1"):
                both.machines("job=1")
        assert silent.num_asked == 1
        with pytest.raises(BackendError, match="within 5 s"):
            both.create("t", region="eu-west-1", zone="", instance_type=TYPE, is_spot=False, tags={})
        now[0] += aws_machines.REST_S
        with pytest.raises(ListedInPart):
            both.machines("job=1")
        assert silent.num_asked == 2
    finally:
        silent.over.set()


def test_a_lost_machine_of_a_silent_region_is_not_taken_for_a_failure_of_its_job(silent: Silent, settings: Any) -> None:
    """Whether it was taken cannot be known before its region answers."""
    job = job_on_ec2()
    order(job, "procure", 1)
    trains(job, 1)
    rows = machines(job, "running")
    settings.AWS_OFFERS = {**settings.AWS_OFFERS, f"eu-west-1/{TYPE}": 0.6}
    machines_sync(rows=rows, now=timezone.now())
    Instance.objects.filter(job=job).update(claim="elsewhere")
    with pytest.raises(ListedInPart):
        machines_sync(rows=machines(job), now=timezone.now())
