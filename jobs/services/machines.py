"""Machines that are bought for planned jobs: asked for, seen as the provider tells, given back, lost."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from django.db import transaction

from jobs.errors import StaleWrite
from jobs.machines import DUD, GIVEN_BACK, MOVES, ORPHAN, TAKEN
from jobs.models import Attempt, Instance, Job, Offer, Placement, Team
from jobs.selectors.reserves import price_now
from jobs.services.commands import command_issue
from jobs.services.events import event_append
from jobs.services.instances import instance_terminating
from jobs.services.plans import plan_ask, plans_ask_waiting
from jobs.services.resizes import moves_nudge
from jobs.services.transitions import state_move


@dataclass(frozen=True)
class MachineFacts:
    """What a provider says of one machine. `status` is pending, running, stopping or terminated; `prices` as `Instance.prices`."""

    provider_id: str
    status: str
    started_at: dt.datetime | None = None
    ended_at: dt.datetime | None = None
    notice_at: dt.datetime | None = None
    ends_by: dt.datetime | None = None
    prices: list[list[Any]] = field(default_factory=list)


def machine_request(*, job: Job, offer: Offer, claim: str, now: dt.datetime) -> Instance:
    """Note the wish for a machine before it is made. Once per `claim`; it costs from the moment at which the provider starts it."""
    instance, is_new = Instance.objects.get_or_create(
        claim=claim,
        defaults={
            "team": job.team,
            "job": job,
            "offer": offer,
            "backend": offer.provider,
            "kind": "spot" if offer.is_spot else "on_demand",
            "num_gpus": offer.num_gpus or 1,
            "price_usd_per_hour": price_now(offer),
            "status": "requested",
            "created_at": now,
            "status_at": now,
        },
    )
    if is_new:
        text = f"{_kind(instance)} machine in {offer} asked for."
        event_append(team=job.team, job=job, kind="instance.requested", subject=instance, now=now, text=text)
    return instance


def machine_seen(*, instance: Instance, facts: MachineFacts, now: dt.datetime) -> None:
    """Take over what the provider says. Harmless to repeat; what another watch has written first stays."""
    try:
        with transaction.atomic():
            _facts_take(instance, facts)
            if facts.status == "terminated":
                machine_gone(instance=instance, now=now, ended_at=facts.ended_at)
                return
            _rise(instance, facts, now)
            if facts.notice_at is not None and instance.notice_at is None:
                _notice_take(instance, facts, now)
            if facts.status == "stopping":
                instance_terminating(instance=instance, now=now)
    except StaleWrite:
        instance.refresh_from_db()


def _facts_take(instance: Instance, facts: MachineFacts) -> None:
    """What a bill is made of, whatever has become of the machine since anybody last looked; and that it is not missing."""
    taken: dict[str, Any] = {}
    if facts.prices and facts.prices != instance.prices:
        taken |= {"prices": facts.prices, "price_usd_per_hour": Decimal(str(facts.prices[-1][1]))}
    if facts.provider_id and not instance.provider_id:
        taken["provider_id"] = facts.provider_id
    if facts.started_at is not None and instance.started_at is None:
        taken["started_at"] = facts.started_at
    if instance.missing_at is not None:
        taken["missing_at"] = None
    if taken:
        Instance.objects.filter(pk=instance.pk).update(**taken)
        for name, value in taken.items():
            setattr(instance, name, value)


def _rise(instance: Instance, facts: MachineFacts, now: dt.datetime) -> None:
    where = f"{_kind(instance)} machine {facts.provider_id}"
    if instance.status == "requested":
        state_move(instance, "provisioning", now=now, text=f"{where} is being started.")
    if instance.status == "provisioning" and facts.status == "running":
        state_move(instance, "running", now=now, running_at=now, text=f"{where} runs.")
        _nudge(instance, now)


def _notice_take(instance: Instance, facts: MachineFacts, now: dt.datetime) -> None:
    """The provider will take the machine: whatever runs on it has to leave in time, and the job is planned anew."""
    won = Instance.objects.filter(pk=instance.pk, notice_at=None).update(
        notice_at=facts.notice_at, ends_by=facts.ends_by
    )
    if won != 1:
        raise StaleWrite("The notice was taken already.")
    instance.notice_at, instance.ends_by = facts.notice_at, facts.ends_by
    by = f" at {facts.ends_by:%H:%M:%S} UTC" if facts.ends_by else ""
    text = f"The provider takes {_kind(instance)} machine {instance.provider_id}{by}."
    event_append(
        team=instance.team, job=instance.job, kind="instance.notice", subject=instance, now=now, text=text,
        data={"notice_at": facts.notice_at.isoformat() if facts.notice_at else None},
    )  # fmt: skip
    if instance.job is not None:
        command_issue(
            job=instance.job, kind="preempt", key=f"preempt:{instance.uuid}", args={"instance": str(instance.uuid)},
            queue="urgent", now=now,
        )  # fmt: skip
        plan_ask(job=instance.job, now=now, why="A machine is being taken.")


def machine_gone(*, instance: Instance, now: dt.datetime, ended_at: dt.datetime | None = None, why: str = "") -> None:
    """Its end is confirmed, and its cost ends at the provider's word. Harmless to repeat. `why`: a sentence more in the history."""
    if instance.status == "terminated":
        return
    was_asked = instance.status == "terminating" or not instance.provider_id
    ended_at = ended_at or now
    state_move(
        instance,
        "terminated",
        now=now,
        ended_at=ended_at,
        started_at=instance.started_at or ended_at,
        detail=instance.detail if instance.detail == DUD else GIVEN_BACK if was_asked else TAKEN,
        text=" ".join(part for part in (_last_words(instance, was_asked), why) if part),
    )
    if not was_asked and instance.job is not None:
        plan_ask(job=instance.job, now=now, why="A machine was taken.")
    plans_ask_waiting(team=instance.team, now=now)
    _nudge(instance, now)


def machines_release(*, instances: list[Instance], now: dt.datetime) -> int:
    """Give machines back; their cost goes on until the provider confirms. Returns how many were not on their way already."""
    num = 0
    for instance in instances:
        try:
            num += instance.status in ("requested", "provisioning", "running")
            instance_terminating(instance=instance, now=now)
        except StaleWrite:
            continue  # it ended, or was given back, in the same moment
    return num


def machines_place(*, attempt: Attempt, instances: list[Instance]) -> None:
    """Rank n of the attempt runs on the n-th machine."""
    Placement.objects.bulk_create(
        [Placement(attempt=attempt, instance=instance, rank=rank) for rank, instance in enumerate(instances)]
    )


def _last_words(instance: Instance, was_asked: bool) -> str:
    if not instance.provider_id:
        return f"The wish for a {_kind(instance).lower()} machine was taken back; none was made."
    return f"{_kind(instance)} machine {instance.provider_id} {'has ended' if was_asked else 'was ' + TAKEN}."


def _nudge(instance: Instance, now: dt.datetime) -> None:
    if instance.job_id is not None:
        moves_nudge(job_id=instance.job_id, now=now, kinds=(*MOVES, "launch"))


def _kind(instance: Instance) -> str:
    return "Spot" if instance.kind == "spot" else "On-demand"


def machine_adopt(
    *, claim: str, facts: MachineFacts, team: Team, job: Job | None, backend: str, offer: Offer | None, now: dt.datetime
) -> Instance:
    """A machine that carries our tag and that no order of ours is known to have made: it costs, so it is shown and counted."""
    instance, is_new = Instance.objects.get_or_create(
        claim=claim,
        defaults={
            "team": team,
            "job": job,
            "offer": offer,
            "backend": backend,
            "provider_id": facts.provider_id,
            "kind": "spot" if offer is not None and offer.is_spot else "on_demand",
            "num_gpus": (offer.num_gpus if offer is not None else None) or 1,
            "status": "provisioning",
            "detail": ORPHAN,
            "started_at": facts.started_at,
            "created_at": now,
            "status_at": now,
        },
    )
    if is_new:
        text = f"Machine {facts.provider_id} carries our tag, but no order of ours made it; it is ended in a minute."
        event_append(team=team, job=job, kind="instance.orphan", subject=instance, now=now, text=text)
    machine_seen(instance=instance, facts=facts, now=now)
    return instance
