"""Duds (`jobs/selectors/duds.py`): given back, counted, and the end of buying for a job that gets one after the other."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from django.db import transaction

from jobs.errors import StaleWrite
from jobs.machines import DUD, DUD_LOOKED_AT
from jobs.models import Instance, Job
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.duds import MAX_DUDS, job_duds
from jobs.services.events import Actor, event_append
from jobs.services.machines import machines_release
from jobs.services.plans import plan_ask


def machine_dud(*, instance: Instance, why: str, now: dt.datetime) -> None:
    """Give back a machine on which no agent spoke, and hold its job after `MAX_DUDS` of them in a row. Harmless to repeat."""
    try:
        with transaction.atomic():
            job = None if instance.job is None else Job.objects.select_for_update().get(pk=instance.job.pk)
            started = Instance.objects.filter(pk=instance.pk, status="provisioning").exclude(detail=DUD)
            if started.update(detail=DUD) != 1:
                return
            instance.detail = DUD
            _tell(instance, why, now)
            machines_release(instances=[instance], now=now)
            if job is not None:
                _hold(job, now)
    except StaleWrite:
        instance.refresh_from_db()


def _tell(instance: Instance, why: str, now: dt.datetime) -> None:
    cost = instance_cost_usd(instance, start=None, end=now)
    text = f"Machine {instance.provider_id} ({instance.offer}) is given back: {why}. It has cost ${cost:,.4f} so far."
    data = {"why": why, "offer": str(instance.offer), "cost_usd": str(cost), "provider_id": instance.provider_id}
    event_append(
        team=instance.team, job=instance.job, kind="instance.dud", subject=instance, now=now, text=text, data=data
    )


def _hold(job: Job, now: dt.datetime) -> None:
    row = job_duds(job=job)
    if len(row) != MAX_DUDS:  # more of them were under way already
        return
    cost = sum((instance_cost_usd(m, start=None, end=now) for m in row), Decimal(0))
    names = ", ".join(m.provider_id for m in row)
    text = (
        f"{job.name} is held: no agent spoke on {MAX_DUDS} machines in a row ({names}), which have cost ${cost:,.4f}. Nothing "
        "more is bought for it until somebody has looked at the launch template, what machines run first, and the shared "
        "folder, and lets the job go on."
    )
    data = {"machines": [str(m.uuid) for m in row], "cost_usd": str(cost)}
    event_append(team=job.team, job=job, kind="job.held", subject=job, now=now, text=text, data=data)
    waiting = Instance.objects.filter(job=job, offer__isnull=False, status="requested")
    machines_release(instances=list(waiting.select_related("job", "team", "offer")), now=now)
    plan_ask(job=job, now=now, why="It is held.")


def hold_lift(*, job: Job, now: dt.datetime, actor: Actor) -> bool:
    """A person has looked: machines are bought for the job again, of the same offers too. False where it was not held."""
    with transaction.atomic():
        job = Job.objects.select_for_update().get(pk=job.pk)
        row = job_duds(job=job)
        if len(row) < MAX_DUDS:
            return False
        Instance.objects.filter(job=job, detail=DUD).update(detail=DUD_LOOKED_AT)
        text = f"{job.name} goes on: machines are bought for it again."
        event_append(team=job.team, job=job, kind="job.released", subject=job, now=now, actor=actor, text=text)
        plan_ask(job=job, now=now, why="It was let go on.")
    return True
