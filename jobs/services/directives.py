"""Directives: orders for a running trainer, delivered in the reply to its reports until acknowledged."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import transaction

from jobs.errors import StaleWrite
from jobs.models import Attempt, Command, Decision, Directive, JobShard
from jobs.services.events import TRAINER
from jobs.services.transitions import state_move


def directive_issue(
    *,
    attempt: Attempt,
    action: str,
    args: dict[str, Any],
    now: dt.datetime,
    command: Command | None = None,
    decision: Decision | None = None,
    not_before_step: int = 0,
) -> Directive:
    """Write an order for the trainer of `attempt`. One per (command, action) even if called again."""
    if command is not None:
        found = Directive.objects.filter(command=command, attempt=attempt, action=action, args=args).first()
        if found is not None:
            return found
    return Directive.objects.create(
        attempt=attempt,
        action=action,
        args=args,
        command=command,
        decision=decision,
        not_before_step=not_before_step,
        status="issued",
        created_at=now,
        status_at=now,
    )


def directives_deliver(*, attempt: Attempt, now: dt.datetime) -> list[Directive]:
    """All orders not yet acknowledged, oldest first; new ones are marked delivered."""
    waiting = list(attempt.directives.filter(status__in=("issued", "delivered")).order_by("id"))
    fresh = [d.pk for d in waiting if d.status == "issued"]
    if fresh:
        Directive.objects.filter(pk__in=fresh, status="issued").update(
            status="delivered", status_at=now, delivered_at=now
        )
    return waiting


@transaction.atomic
def directive_acknowledge(
    *, attempt: Attempt, directive_uuid: str, outcome: str, step: int | None, detail: str, now: dt.datetime
) -> None:
    """Note the trainer's word. Repeats and unknown ids change nothing."""
    from jobs.services.decisions import decision_applied, decision_failed
    from jobs.services.resizes import moves_nudge

    directive = attempt.directives.select_related("decision", "command").filter(uuid=directive_uuid).first()
    if directive is None or directive.status not in ("issued", "delivered"):
        return
    to = "applied" if outcome == "applied" else "refused"
    try:
        state_move(
            directive,
            to,
            now=now,
            actor=TRAINER,
            applied_step=step if to == "applied" else None,
            detail=detail,
            text=f"{directive.action} {to}" + (f" at step {step}." if to == "applied" else f": {detail}"),
        )
    except StaleWrite:
        return  # another worker of the API took the same acknowledgement
    if to == "applied":
        mirror_applied(directive)
    if directive.action in ("resize", "drain"):
        moves_nudge(job_id=attempt.job_id, now=now)
    if directive.decision is None:
        return
    others = directive.decision.directives.filter(status__in=("issued", "delivered")).exclude(pk=directive.pk)
    if to == "refused":
        decision_failed(decision=directive.decision, now=now, error=f"The trainer refused: {detail}")
    elif not others.exists():
        decision_applied(decision=directive.decision, step=step or 0, now=now)


def mirror_applied(directive: Directive) -> None:
    """Keep `JobShard` equal to what the trainer now does."""
    rows = JobShard.objects.filter(job=directive.attempt.job)
    args = directive.args
    if directive.action == "set_weights":
        for key, weight in args["weights"].items():
            rows.filter(shard__key=key).update(weight=weight)
    elif directive.action == "pause_shard":
        rows.filter(shard__key=args["shard"]).update(paused=True)
    elif directive.action == "resume_shard":
        extra = {"weight": args["weight"]} if args.get("weight") is not None else {}
        rows.filter(shard__key=args["shard"]).update(paused=False, **extra)
    elif directive.action == "add_shard":
        fields: dict[str, Any] = {}
        if args.get("resume"):
            fields["paused"] = False
        if args.get("weight") is not None:
            fields["weight"] = args["weight"]
        row = rows.select_related("shard").filter(shard__key=args["shard"]).first()
        if row is not None:
            fields["revision"] = row.shard.revisions.get(uuid=args["revision"])
            rows.filter(pk=row.pk).update(**fields)


def directives_expire(*, attempt: Attempt, now: dt.datetime) -> None:
    """Close what an ended attempt never acknowledged. Shares of its workers mean nothing to the next one."""
    from jobs.services.decisions import decision_failed

    for directive in attempt.directives.filter(status__in=("issued", "delivered")):
        try:
            state_move(directive, "expired", now=now, text=f"{directive.action} expired: the attempt ended first.")
        except StaleWrite:
            continue  # acknowledged in the same moment
        if directive.action == "rebalance" and directive.decision is not None:
            decision_failed(decision=directive.decision, now=now, error="The workers left before it took effect.")
