"""Commands: issued once, claimed under a lease, ended once. The broker is only the doorbell."""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import F, Q

from jobs.errors import StaleWrite
from jobs.models import Command, Decision, Job
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.transitions import state_move
from jobs.signals import command_issued

LEASE = dt.timedelta(seconds=60)
MAX_TRIES = 5


def command_issue(
    *,
    job: Job,
    kind: str,
    key: str,
    now: dt.datetime,
    args: dict[str, Any] | None = None,
    decision: Decision | None = None,
    queue: str = "control",
    due_at: dt.datetime | None = None,
    actor: Actor = SYSTEM,
) -> Command:
    """Write the order and ring after commit. The same `key` a second time returns the first order."""
    try:
        with transaction.atomic():
            command = command_made(
                job=job, kind=kind, key=key, now=now, args=args or {}, decision=decision, queue=queue
            )
            command.due_at = due_at or now
            command.save(force_insert=True)
            event_append(**issued_event(command, now, actor))
            command_ring(command)
    except IntegrityError:
        return Command.objects.get(key=key)
    return command


def command_made(
    *,
    job: Job,
    kind: str,
    key: str,
    now: dt.datetime,
    args: dict[str, Any],
    decision: Decision | None,
    queue: str = "control",
) -> Command:
    """An order, due now, that is not written yet."""
    return Command(
        job=job,
        decision=decision,
        kind=kind,
        key=key,
        args=args,
        queue=queue,
        status="issued",
        due_at=now,
        created_at=now,
        status_at=now,
    )


def issued_event(command: Command, now: dt.datetime, actor: Actor) -> dict[str, Any]:
    """What the history says of a new order."""
    return {
        "team": command.job.team,
        "job": command.job,
        "kind": "command.issued",
        "subject": command,
        "now": now,
        "actor": actor,
        "text": f"{command.kind} ordered.",
    }


def command_ring(command: Command) -> None:
    """Ring the doorbell after commit; nothing is lost if nobody hears it."""
    transaction.on_commit(
        lambda: command_issued.send_robust(sender=Command, command_id=command.pk, queue=command.queue), robust=True
    )


def commands_due(*, now: dt.datetime, limit: int = 200) -> list[Command]:
    """Commands that wait, and those whose lease has lapsed: what the sweep rings for."""
    ready = Q(status="issued", due_at__lte=now) | Q(status="claimed", lease_until__lt=now)
    return list(Command.objects.filter(ready).order_by("id")[:limit])


def command_claim(*, command_id: int, now: dt.datetime, lease: dt.timedelta = LEASE) -> Command | None:
    """Take a command for execution, or None if another holds it, it is over, or not yet due.

    A lapsed lease may be taken over. After `MAX_TRIES` takes the command fails for good.
    """
    command = Command.objects.select_related("job", "job__team", "decision").filter(pk=command_id).first()
    if command is None or command.due_at > now:
        return None
    if command.status not in ("issued", "claimed") or (command.status == "claimed" and command.lease_until > now):  # type: ignore[operator]
        return None
    if command.num_tries >= MAX_TRIES:
        with contextlib.suppress(StaleWrite):  # another sweep may have failed it
            command_fail(command=command, now=now, error=command.error or f"Given up after {MAX_TRIES} tries.")
        return None
    claim = secrets.token_hex(16)
    won = Command.objects.filter(pk=command.pk, status=command.status, claim=command.claim).update(
        status="claimed", status_at=now, claim=claim, lease_until=now + lease, num_tries=F("num_tries") + 1
    )
    if won != 1:
        return None
    command.refresh_from_db()
    return command


def command_renew(*, command: Command, now: dt.datetime, lease: dt.timedelta = LEASE) -> None:
    """Keep a long execution's lease. Raises `StaleWrite` if it was lost: the holder must stop."""
    won = Command.objects.filter(pk=command.pk, status="claimed", claim=command.claim).update(lease_until=now + lease)
    if won != 1:
        raise StaleWrite("The command was taken over.")


def command_done(*, command: Command, now: dt.datetime, result: dict[str, Any] | None = None) -> None:
    """Close a command that was carried out. Raises `StaleWrite` if the claim was lost."""
    state_move(
        command,
        "done",
        now=now,
        where={"claim": command.claim},
        result=result or {},
        ended_at=now,
        error="",
        text=f"{command.kind} done.",
    )


def command_fail(*, command: Command, now: dt.datetime, error: str, overtaken: bool = False) -> None:
    """Close a command that cannot be carried out, and fail the decision behind it; one that was overtaken is superseded."""
    from jobs.services.decisions import decision_failed

    with transaction.atomic():
        state_move(
            command,
            "failed",
            now=now,
            where={"claim": command.claim},
            error=error,
            ended_at=now,
            text=f"{command.kind} failed: {error}",
        )
        if command.decision is not None:
            decision_failed(decision=command.decision, now=now, error=error, overtaken=overtaken)


def command_retry(*, command: Command, now: dt.datetime, error: str, delay: dt.timedelta) -> None:
    """Give a command back after a passing fault; it is due again after `delay`."""
    state_move(
        command,
        "issued",
        now=now,
        where={"claim": command.claim},
        claim="",
        lease_until=None,
        error=error,
        due_at=now + delay,
        text=f"{command.kind} will be tried again: {error}",
    )


def command_wait(*, command: Command, now: dt.datetime, reason: str, delay: dt.timedelta) -> None:
    """Give a command back because its time has not come. Unlike a retry this uses up no try and makes no event."""
    won = Command.objects.filter(pk=command.pk, status="claimed", claim=command.claim).update(
        status="issued",
        status_at=now,
        claim="",
        lease_until=None,
        error=reason,
        due_at=now + delay,
        num_tries=max(0, command.num_tries - 1),
    )
    if won != 1:
        raise StaleWrite("The command was taken over.")


def command_note(*, command: Command, **facts: Any) -> None:
    """Keep facts of a half-done execution, so that a second one goes on from there. Raises `StaleWrite` if the claim was lost."""
    result = {**command.result, **facts}
    won = Command.objects.filter(pk=command.pk, status="claimed", claim=command.claim).update(result=result)
    if won != 1:
        raise StaleWrite("The command was taken over.")
    command.result = result
