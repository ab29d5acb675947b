"""Instances: what costs money from the request until its end is confirmed."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

from jobs.errors import StaleWrite
from jobs.models import Attempt, Instance
from jobs.services.plans import plans_ask_waiting
from jobs.services.transitions import state_move


def instance_request(
    *,
    attempt: Attempt,
    claim: str,
    backend: str,
    num_gpus: int,
    price_usd_per_hour: decimal.Decimal,
    now: dt.datetime,
    kind: str = "on_demand",
) -> Instance:
    """Note the wish for a machine before it is made, so that a crash in between leaves a trace. Once per `claim`."""
    instance, _ = Instance.objects.get_or_create(
        claim=claim,
        defaults={
            "team": attempt.job.team,
            "job": attempt.job,
            "attempt": attempt,
            "backend": backend,
            "kind": kind,
            "num_gpus": num_gpus,
            "price_usd_per_hour": price_usd_per_hour,
            "status": "requested",
            "created_at": now,
            "status_at": now,
            "started_at": now,
        },
    )
    return instance


def instance_running(*, instance: Instance, now: dt.datetime, provider_id: str = "") -> None:
    """The machine stands. Harmless to repeat."""
    if instance.status == "requested":
        state_move(
            instance, "provisioning", now=now, provider_id=provider_id, text=f"{instance.backend} machine given."
        )
    if instance.status == "provisioning":
        state_move(instance, "running", now=now, text=f"{instance.backend} machine runs.")


def instance_waits(*, instance: Instance, provider_id: str = "", detail: str = "") -> None:
    """Why it does not run yet, in the words of the cluster; the number by which the cluster knows it. Not a status."""
    changed = {"provider_id": provider_id or instance.provider_id, "detail": detail[:500]}
    if any(getattr(instance, name) != value for name, value in changed.items()):
        Instance.objects.filter(pk=instance.pk).update(**changed)


def instance_started(*, instance: Instance, now: dt.datetime, kind: str, price_usd_per_hour: decimal.Decimal) -> None:
    """A cluster has given the nodes: cost begins here, at this price. Harmless to repeat."""
    if instance.status == "requested":
        state_move(instance, "provisioning", now=now, text=f"{instance.backend} nodes given.")
    if instance.status == "provisioning":
        fields: dict[str, Any] = {
            "kind": kind,
            "price_usd_per_hour": price_usd_per_hour,
            "started_at": now,
            "detail": "",
        }
        state_move(instance, "running", now=now, text=f"{instance.backend} nodes run.", **fields)


def instance_terminating(*, instance: Instance, now: dt.datetime) -> None:
    """Its end has been asked for; it goes on costing. Harmless to repeat."""
    if instance.status in ("requested", "provisioning", "running"):
        state_move(instance, "terminating", now=now, text=f"{instance.backend} machine asked to end.")


def instance_terminated(*, instance: Instance, now: dt.datetime, detail: str = "") -> None:
    """Its end is confirmed; cost stops here. Harmless to repeat."""
    if instance.status == "terminated":
        return
    try:
        state_move(
            instance, "terminated", now=now, ended_at=now, detail=detail, text=f"{instance.backend} machine has ended."
        )
    except StaleWrite:
        return  # another watch confirmed it in the same moment
    plans_ask_waiting(team=instance.team, now=now)


def attempt_place(*, attempt: Attempt, handle: dict[str, Any], run_dir: str) -> None:
    """Store where an attempt runs. The same handle again changes nothing."""
    Attempt.objects.filter(pk=attempt.pk).update(handle=handle, run_dir=run_dir)
    attempt.handle, attempt.run_dir = handle, run_dir
