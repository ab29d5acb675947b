"""Answers to decisions: one winner, one execution, edited arguments only inside the allowed range."""

from __future__ import annotations

import datetime as dt
import math
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction

from jobs.errors import AlreadyAnswered, Invalid, NotAllowed, StaleWrite
from jobs.models import Approval, Decision
from jobs.services.commands import command_issue
from jobs.services.events import Actor
from jobs.services.transitions import state_move

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def decision_approve(
    *,
    decision: Decision,
    now: dt.datetime,
    user: User | None = None,
    by_rule: str = "",
    args: dict[str, Any] | None = None,
    reason: str = "",
) -> Decision:
    """Say yes, by a person or by a rule; the command is issued in the same transaction.

    Raises `AlreadyAnswered` if the decision is no longer open, `Invalid` for arguments out of range, `NotAllowed` where the
    team forbids approving one's own request. Where two people are needed, the first yes leaves the decision open.
    """
    _check_open(decision, now)
    if user is not None and decision.team.forbid_own_approval and decision.requested_by_id == user.pk:
        raise NotAllowed("You asked for this; somebody else has to approve it.")
    final = {**decision.args, **(_edited(decision, args) if args else {})}
    actor = Actor.person(user) if user else Actor.rule(by_rule)
    try:
        with transaction.atomic():
            # Two first answers at once must see each other, or both would wait for a second.
            Decision.objects.select_for_update().only("pk").get(pk=decision.pk)
            Approval.objects.create(
                decision=decision,
                user=user,
                by_rule=by_rule,
                answer="approve",
                reason=reason,
                args=args,
                created_at=now,
            )
            if user is not None and _needs_second(decision):
                return decision
            state_move(
                decision,
                "approved",
                now=now,
                actor=actor,
                args=final,
                text=f"{decision} approved by {actor.label}." + (f" {reason}" if reason else ""),
                data={"args": final, "edited": args or {}},
            )
            command_issue(
                job=decision.job,
                kind=decision.kind,
                key=f"decision:{decision.uuid}",
                args=final,
                decision=decision,
                now=now,
                actor=actor,
            )
    except StaleWrite:
        raise _answered(decision) from None
    except IntegrityError:
        raise AlreadyAnswered(f"You have already answered {decision}.") from None
    return decision


def decision_reject(*, decision: Decision, now: dt.datetime, reason: str, user: User | None = None) -> Decision:
    """Say no, with a reason. Raises `AlreadyAnswered`, or `Invalid` without a reason."""
    if not reason.strip():
        raise Invalid("Say why: the rule and your colleagues learn from it.", fields={"reason": ["Give a reason."]})
    _check_open(decision, now)
    actor = Actor.person(user) if user else Actor("default")
    try:
        with transaction.atomic():
            if user is not None:
                Approval.objects.update_or_create(
                    decision=decision, user=user, defaults={"answer": "reject", "reason": reason, "created_at": now}
                )
            state_move(decision, "rejected", now=now, actor=actor, text=f"{decision} rejected: {reason}")
    except StaleWrite:
        raise _answered(decision) from None
    return decision


def decision_answer_by_default(*, decision: Decision, now: dt.datetime) -> None:
    """Nobody answered: do what the rule says silence means."""
    try:
        if decision.default_answer == "approve":
            decision_approve(
                decision=decision, now=now, by_rule=f"{decision.kind} (default)", reason="Nobody answered in time."
            )
        else:
            decision_reject(decision=decision, now=now, reason="Nobody answered in time; silence means no.")
    except AlreadyAnswered:
        return  # a person was faster


def _check_open(decision: Decision, now: dt.datetime) -> None:
    if decision.status != "proposed":
        raise _answered(decision)
    if decision.expires_at <= now:
        raise AlreadyAnswered(f"{decision} expired at {decision.expires_at:%H:%M} UTC.", status="expired")


def _answered(decision: Decision) -> AlreadyAnswered:
    decision.refresh_from_db()
    last = decision.approvals.order_by("-id").first()
    who = f" by {last.user or 'rule ' + last.by_rule}" if last else ""
    return AlreadyAnswered(f"{decision} is already {decision.status}{who}.", status=decision.status)


def _needs_second(decision: Decision) -> bool:
    if not decision.team.two_person:
        return False
    return decision.approvals.filter(answer="approve").values("user").distinct().count() < 2


def _edited(decision: Decision, args: dict[str, Any]) -> dict[str, Any]:
    """The edited arguments, checked against `decision.allowed`."""
    errors: dict[str, list[str]] = {}
    for name, value in args.items():
        if value == decision.args.get(name):
            continue
        if (problem := _out_of_range(decision.allowed.get(name), value)) is not None:
            errors[name] = [problem]
    if errors:
        raise Invalid("These arguments are outside what may be chosen.", fields=errors)
    return args


def _out_of_range(allowed: Any, value: Any) -> str | None:
    if allowed is None:
        return "This argument may not be changed."
    if isinstance(allowed, list):
        return None if value in allowed else "One of " + ", ".join(str(a) for a in allowed) + "."
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return "Give a number."
    if allowed.get("integer") and value != int(value):
        return "Give a whole number."
    if not allowed["min"] <= value <= allowed["max"]:
        return f"From {allowed['min']} to {allowed['max']}."
    return None
