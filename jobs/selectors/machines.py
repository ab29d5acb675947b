"""Reads about the machines that are held for a job."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import QuerySet

from jobs.models import Instance, Job

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
    return list(machines_of(job=job).filter(status="running", notice_at=None).select_related("offer"))


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
