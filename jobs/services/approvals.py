"""Answers to decisions: one winner, one execution, edited arguments only inside the allowed range."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction

from jobs.errors import AlreadyAnswered, Invalid, NotAllowed, Outdated, StaleWrite
from jobs.machines import is_planned
from jobs.models import Approval, Decision
from jobs.scheduler.arguments import edit_errors
from jobs.scheduler.procurement import RULE
from jobs.selectors.decisions import args_in_force, decision_newer
from jobs.services.asked_prices import asked_price_check
from jobs.services.commands import command_issue
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.plans import APPROVED, plan_ask, plan_change_noted
from jobs.services.second_approvals import (
    approvals_make_void,
    half_tell,
    seen_check,
    silence_is_no_yes,
    waits_for_another,
)
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
    seen_args: dict[str, Any] | None = None,
    reason: str = "",
) -> Decision:
    """Say yes, by a person or by a rule; the command is issued in the same transaction.

    `args` edits the arguments in force, `seen_args` are those that the person was shown. Where two approvals are needed, the first
    leaves the decision open. Raises `AlreadyAnswered` if it is no longer open, `Invalid` for arguments out of range, `NotAllowed`
    where the team forbids approving one's own request, `Conflict` if other arguments are in force than the person saw, `Outdated`
    if what it buys has become dearer since it was asked.
    """
    _check_open(decision, now)
    if user is not None and decision.team.forbid_own_approval and decision.requested_by_id == user.pk:
        raise NotAllowed("You asked for this; somebody else has to approve it.")
    _check_edits(decision, args or {})
    asked_price_check(decision=decision, now=now)
    actor = Actor.person(user) if user else Actor.rule(by_rule)
    try:
        with transaction.atomic():
            locked = _locked(decision)
            before = args_in_force(decision=locked)
            seen_check(decision, before, seen_args, user)
            final = {**before, **(args or {})}
            if final != before:
                approvals_make_void(locked, final, now, actor)
            Approval.objects.create(
                decision=decision,
                user=user,
                by_rule=by_rule,
                answer="approve",
                reason=reason,
                args={k: v for k, v in final.items() if v != decision.args.get(k)} or None,
                created_at=now,
            )
            if waits_for_another(decision, final):
                half_tell(decision, final, now, actor, reason)
            else:
                _carry_out(decision, final, now, actor, reason)
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
                    decision=decision,
                    user=user,
                    void_at=None,
                    defaults={"answer": "reject", "reason": reason, "created_at": now},
                )
            state_move(decision, "rejected", now=now, actor=actor, text=f"{decision} rejected: {reason}")
            if decision.rule == RULE and is_planned(decision.job):
                plan_ask(job=decision.job, now=now, why=f"{decision} was rejected.")
    except StaleWrite:
        raise _answered(decision) from None
    return decision


def decision_answer_by_default(*, decision: Decision, now: dt.datetime) -> None:
    """Nobody answered: do what the rule says silence means."""
    try:
        if decision.default_answer == "escalate":
            _escalate(decision, now)
            return
        if decision.default_answer != "approve":
            decision_reject(decision=decision, now=now, reason="Nobody answered in time; silence means no.")
            return
        if why := silence_is_no_yes(decision, now):
            _drop_default(decision, now, f"Silence does not count as a yes to {decision}: {why}.")
            return
        by_rule = f"{decision.kind} (default)"
        decision_approve(decision=decision, now=now, by_rule=by_rule, reason="Nobody answered in time.")
        if decision.status == "proposed":
            _drop_default(decision, now, f"Silence was one of two approvals of {decision}; a person gives the other.")
    except (AlreadyAnswered, Outdated):
        return  # a person was faster, or it is asked anew


def _escalate(decision: Decision, now: dt.datetime) -> None:
    """Silence means that others are told (`decision.escalated`, which a notification target may name); it stays open."""
    until = f"{decision.expires_at:%H:%M} UTC"
    _drop_default(decision, now, f"Nobody has answered {decision}; an answer is of use until {until}.", "escalated")


def _drop_default(decision: Decision, now: dt.datetime, text: str, word: str = "silence") -> None:
    """Silence has said what it had to say; the decision waits for people until it expires."""
    with transaction.atomic():
        rows = Decision.objects.filter(pk=decision.pk, status="proposed", default_at__isnull=False)
        if rows.update(default_at=None, default_answer=""):
            event_append(
                team=decision.team, job=decision.job, kind=f"decision.{word}", subject=decision, now=now, actor=SYSTEM,
                text=text,
            )  # fmt: skip


def _locked(decision: Decision) -> Decision:
    """The row as it is now, for this transaction alone. Two answers at once must see each other, or both would wait."""
    locked = Decision.objects.select_for_update().get(pk=decision.pk)
    if locked.status != "proposed":
        raise StaleWrite(f"{decision} was no longer proposed.")
    return locked


def _check_edits(decision: Decision, edits: dict[str, Any]) -> None:
    if errors := edit_errors(decision.args, decision.allowed, edits):
        raise Invalid("These arguments are outside what may be chosen.", fields=errors)


def _carry_out(decision: Decision, final: dict[str, Any], now: dt.datetime, actor: Actor, reason: str) -> None:
    """The last yes that was needed."""
    edited = {name: value for name, value in final.items() if value != decision.args.get(name)}
    text, data = approved_words(decision, actor, reason), {"args": final, "edited": edited}
    state_move(decision, "approved", now=now, actor=actor, args=final, text=text, data=data)
    if decision.rule == RULE:
        plan_change_noted(job=decision.job, now=now)
    if decision.rule == RULE and actor.user is not None and is_planned(decision.job):
        plan_ask(job=decision.job, now=now, why=APPROVED)
    command_issue(
        job=decision.job,
        kind=decision.kind,
        key=decision_key(decision),
        args=final,
        decision=decision,
        now=now,
        actor=actor,
    )


def decision_key(decision: Decision) -> str:
    """Under which its order is written once."""
    return f"decision:{decision.uuid}"


def approved_words(decision: Decision, actor: Actor, reason: str) -> str:
    return f"{decision} approved by {actor.label}." + (f" {reason}" if reason else "")


def _check_open(decision: Decision, now: dt.datetime) -> None:
    if decision.status != "proposed":
        raise _answered(decision)
    if decision.expires_at <= now:
        raise AlreadyAnswered(f"{decision} expired at {decision.expires_at:%H:%M} UTC.", status="expired")


def _answered(decision: Decision) -> AlreadyAnswered:
    decision.refresh_from_db()
    if (newer := decision_newer(decision=decision)) is not None:
        words = f"{decision} is already superseded: {newer} stands in its place."
        return AlreadyAnswered(words, status=decision.status, newer={"id": str(newer.uuid), "name": str(newer)})
    last = decision.approvals.filter(void_at=None).order_by("-id").first()
    who = f" by {last.user or 'rule ' + last.by_rule}" if last else ""
    return AlreadyAnswered(f"{decision} is already {decision.status}{who}.", status=decision.status)
