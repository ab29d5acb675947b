"""Reads about the machines that are held for a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from jobs.machines import ALLOCATIONS, ORPHAN
from jobs.models import Attempt, Command, Instance, Job

MAX_MACHINES = 4096
ASKED = ("requested", "provisioning")


@dataclass(frozen=True)
class Holdings:
    """Machines of a job: those that run without a notice, those that run under one, and those that were asked for."""

    spot: int = 0
    on_demand: int = 0
    under_notice: int = 0
    requested_spot: int = 0
    requested_on_demand: int = 0

    @property
    def usable(self) -> int:
        """Machines that a trainer can be started on."""
        return self.spot + self.on_demand


def machines_of(*, job: Job) -> QuerySet[Instance]:
    """Machines of the simulated cloud or a provider that were bought for the job, oldest first."""
    return Instance.objects.filter(job=job, offer__isnull=False).order_by("id")


def usable_machines(*, job: Job) -> list[Instance]:
    """Those that run and are under no notice, oldest first."""
    rows = machines_of(job=job).filter(status="running", notice_at=None).exclude(detail=ORPHAN)
    return list(rows.select_related("offer"))


def holdings(job: Job) -> Holdings:
    """How many machines the job holds now. One query."""
    rows = machines_of(job=job).exclude(status__in=("terminating", "terminated"))
    counts = {"spot": 0, "on_demand": 0, "under_notice": 0, "requested_spot": 0, "requested_on_demand": 0}
    for kind, status, notice_at in rows.values_list("kind", "status", "notice_at"):
        if status in ASKED:
            counts[f"requested_{kind}"] += 1
        elif notice_at is not None:
            counts["under_notice"] += 1
        else:
            counts[kind] += 1
    return Holdings(**counts)


@dataclass(frozen=True)
class Target:
    """The wanted numbers of machines, by the newest order. `offer` is the public id of a spot offer, if one was named."""

    spot: int
    on_demand: int
    offer: str = ""

    @property
    def total(self) -> int:
        return self.spot + self.on_demand


def target_command(*, job: Job) -> Command | None:
    """The order that says how many machines the job is to have."""
    return Command.objects.filter(job=job, kind__in=ALLOCATIONS).exclude(status="failed").order_by("-id").first()


def target_of(*, job: Job) -> Target | None:
    """How many machines the job is to have, or None before the first order."""
    command = target_command(job=job)
    return None if command is None else target_parse(command.args)


def target_parse(args: dict[str, Any]) -> Target:
    """ValueError for numbers that are none."""
    spot, on_demand = args.get("spot", 0), args.get("on_demand", 0)
    for name, value in (("spot", spot), ("on_demand", on_demand)):
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_MACHINES:
            raise ValueError(f'"{name}" is {value!r}; a whole number from 0 to {MAX_MACHINES} is needed')
    return Target(spot, on_demand, str(args.get("offer") or ""))


def machines_kept(*, job: Job, target: Target) -> list[Instance]:
    """The usable machines that the target keeps, all in one region: those of the named offer first, then the oldest."""
    usable = usable_machines(job=job)
    spot = sorted(
        (m for m in usable if m.kind == "spot"), key=lambda m: target.offer not in ("", _offer_id(m))
    )  # a stable sort: equal ones stay in the order of their age
    home = _region(spot[0]) if spot and target.spot else ""
    on_demand = sorted((m for m in usable if m.kind != "spot"), key=lambda m: home not in ("", _region(m)))
    return _together([*spot[: target.spot], *on_demand[: target.on_demand]])


def _together(machines: list[Instance]) -> list[Instance]:
    """A world is not spread over regions: those of the region that has most of them, of the first one where they are equal."""
    most = Counter(_region(m) for m in machines).most_common(1)
    return [m for m in machines if _region(m) == most[0][0]]


def region_in_use(machines: Iterable[Instance]) -> str:
    """Where the machines of a job work, or are to work; spot first. Empty where it has none, or only ones that are refused."""
    there = [
        m
        for m in machines
        if m.offer is not None
        and m.notice_at is None
        and (m.status in ("running", "provisioning") or (m.status == "requested" and not m.asked.get("num")))
    ]
    first = min(there, key=lambda m: (m.status != "running", m.kind != "spot", m.pk), default=None)
    return _region(first) if first is not None else ""


def _region(machine: Instance) -> str:
    return machine.offer.region if machine.offer else ""


def _offer_id(machine: Instance) -> str:
    return str(machine.offer.uuid) if machine.offer else ""


def placed_machines(*, attempt: Attempt) -> list[Instance]:
    """The machines that the ranks of an attempt run on, by rank."""
    rows = attempt.placements.select_related("instance").order_by("rank")
    return [placement.instance for placement in rows]
