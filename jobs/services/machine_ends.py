"""Ends of bought machines that are in doubt: missing from what the provider tells, not confirmed for long, believed too early."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.conf import settings
from django.db import transaction

from jobs.errors import StaleWrite
from jobs.machines import GIVEN_BACK, TAKEN
from jobs.models import Event, Instance
from jobs.selectors.costs import instance_cost_usd
from jobs.services.events import event_append
from jobs.services.machines import MachineFacts, machine_gone

MISSING = dt.timedelta(seconds=60)  # without a word in between, until the end of a machine is believed
AGAIN = dt.timedelta(seconds=1)  # after the first time its end was asked for in vain; then twice that, and so on up to:
AGAIN_MAX = dt.timedelta(seconds=30)
UNDEAD = "lived on after its end was believed"


def machine_missing(*, instance: Instance, now: dt.datetime) -> None:
    """Neither list nor question gave a word of it. Its end is believed after `MISSING` of that; it cost until the first time.

    A word in between (`machine_seen`) starts the time anew.
    """
    since = instance.missing_at
    if since is None or now < since:  # the first time, or a clock that was set back
        held = Instance.objects.filter(pk=instance.pk, missing_at=since).exclude(status="terminated")
        if held.update(missing_at=now):
            instance.missing_at = now
        return
    if now - since <= MISSING:
        return
    try:
        text = f"The provider has told nothing of it since {since:%H:%M:%S} UTC: taken to have ended then."
        machine_gone(instance=instance, now=now, ended_at=since, why=text)
    except StaleWrite:
        instance.refresh_from_db()


def may_ask_for_end(instance: Instance, now: dt.datetime) -> bool:
    """Whether the pause after the last time is over; a clock that was set back does not make it longer."""
    wait_s = float(instance.end_asked.get("again_at", 0.0)) - now.timestamp()
    return not 0 < wait_s <= AGAIN_MAX.total_seconds()


def end_asked(*, instance: Instance, answer: str, now: dt.datetime) -> None:
    """Its end was asked for once more; `answer`: why not, empty where the provider did not refuse."""
    num = int(instance.end_asked.get("num", 0)) + 1
    again_at = now + min(AGAIN_MAX, AGAIN * 2 ** min(num - 1, 10))
    instance.end_asked = {"num": num, "again_at": again_at.timestamp(), "answer": answer[:500]}
    Instance.objects.filter(pk=instance.pk).update(end_asked=instance.end_asked)


def ends_late_sweep(*, now: dt.datetime) -> int:
    """Say once of each machine that its end was asked for long ago and is not confirmed, on clusters too. Returns of how many."""
    asked_before = now - dt.timedelta(seconds=settings.END_LATE_S)
    late = Instance.objects.filter(status="terminating", end_late_at=None, status_at__lt=asked_before)
    return sum(_end_late(instance, now) for instance in late.select_related("team", "job__team", "attempt__job__team"))


@transaction.atomic
def _end_late(instance: Instance, now: dt.datetime) -> bool:
    rows = Instance.objects.filter(pk=instance.pk, status="terminating", end_late_at=None)
    if not rows.update(end_late_at=now):
        return False
    cost = instance_cost_usd(instance, start=None, end=now)
    num, answer = instance.end_asked.get("num", 0), instance.end_asked.get("answer", "")
    text = (
        f"The end of {instance.backend} machine {instance.provider_id or instance.claim} was asked for at "
        f"{instance.status_at:%H:%M} UTC and is not confirmed{f', asked {num} times' if num else ''}"
        f"{f'. Last answer: {answer}' if answer else ''}. It has cost ${cost:,.4f} and goes on costing "
        f"${instance.price_usd_per_hour:,.4f} an hour until it is. It is asked again; look at it where it runs."
    )
    data = {"num_asked": num, "answer": answer, "cost_usd": str(cost), "provider_id": instance.provider_id}
    job = instance.job or (instance.attempt.job if instance.attempt else None)
    event_append(team=instance.team, job=job, kind="instance.end_late", subject=instance, now=now, text=text, data=data)
    return True


@transaction.atomic
def machine_undead(*, instance: Instance, facts: MachineFacts, now: dt.datetime) -> None:
    """Its end was believed, and it lives: it costs until now, which is said once, and until its end as soon as that is known."""
    if instance.status != "terminated":
        return
    cost_end_move(instance=instance, facts=facts, ended_at=now)
    if not Event.objects.filter(subject_uuid=instance.uuid, kind="instance.undead").exists():
        Instance.objects.filter(pk=instance.pk, detail__in=(TAKEN, GIVEN_BACK)).update(detail=UNDEAD)
        text = f"Machine {facts.provider_id} {UNDEAD}; it is asked to end again, and its cost goes on until it has."
        event_append(team=instance.team, job=instance.job, kind="instance.undead", subject=instance, now=now, text=text)


def cost_end_move(*, instance: Instance, facts: MachineFacts, ended_at: dt.datetime) -> None:
    """A machine that has ended here cost up to a later moment. Harmless to repeat; never to an earlier one."""
    changed: dict[str, Any] = {"ended_at": ended_at} | ({"prices": facts.prices} if facts.prices else {})
    Instance.objects.filter(pk=instance.pk, status="terminated", ended_at__lt=ended_at).update(**changed)
