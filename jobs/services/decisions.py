"""Decisions: proposed once per subject, answered once, carried out once, measured afterwards."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from django.db import IntegrityError, transaction
from django.db.models import F

from jobs.errors import StaleWrite
from jobs.models import Decision, Job, Rule, Team
from jobs.scheduler.autonomy import Usage, Verdict, autonomy_verdict
from jobs.scheduler.proposal import Proposal
from jobs.services.asked_prices import asks_look_again
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.rules import needs_two, rule_for, rule_usage
from jobs.services.transitions import state_move
from jobs.states import JOB_OVER

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def decision_propose(
    *,
    job: Job,
    proposal: Proposal,
    now: dt.datetime,
    situation: dict[str, Any] | None = None,
    requested_by: User | None = None,
    anew: str = "",
) -> Decision | None:
    """Store a proposal; a standing one of the same rule and subject is superseded, unless it says the same.

    `anew` is why it is asked anew even though the arguments are the same.

    Under a rule that allows it the decision is approved in the same transaction. Returns None when the kind is off or an equal
    proposal stands already.
    """
    rule = rule_for(job=job, kind=proposal.kind)
    try:
        with transaction.atomic():
            verdict = verdict_on(job=job, proposal=proposal, rule=rule, usage=_used(rule, job, now))
            if verdict.answer == "drop" and requested_by is None:
                return None
            standing = _standing(job, proposal)
            if standing is not None and standing.args == proposal.args and not anew:
                return None
            if standing is not None:
                _supersede(standing, anew, now)
            decision = decision_made(job, proposal, now, situation or {}, rule, verdict, requested_by)
            decision.number = numbers_take(team_id=job.team_id, num=1)[0]
            decision.save(force_insert=True)
            event_append(**proposed_event(decision, now, requested_by))
            if verdict.answer == "approve":
                _approve_by_rule(decision, rule.kind, verdict.reason, now)
    except (IntegrityError, StaleWrite):
        return None  # another evaluation stored its proposal first, or a person answered the standing one just now
    return decision


def _supersede(standing: Decision, why: str, now: dt.datetime) -> None:
    """A newer proposal takes its place; approvals given so far were for the old one."""
    words = f": {why}" if why else ""
    text = f"{standing} gave way to a newer proposal{words}."
    failure = f"It was asked anew{words}." if why else ""
    state_move(standing, "superseded", now=now, text=text, failure=failure)


def _used(rule: Rule, job: Job, now: dt.datetime) -> Usage:
    """What counts against the limits of the rule. The team's row is held from here to the end of the transaction: of two
    proposals in the same moment the second sees what the first has used."""
    if not rule.limits:
        return Usage()
    Team.objects.select_for_update(no_key=True).get(pk=job.team_id)
    return rule_usage(rule=rule, job=job, now=now)


def verdict_on(*, job: Job, proposal: Proposal, rule: Rule, usage: Usage) -> Verdict:
    """What the rule in force says to a proposal."""
    return autonomy_verdict(
        autonomy=rule.autonomy,
        limits=rule.limits,
        usage=usage,
        price_usd=proposal.price_usd,
        num_samples=int(proposal.args.get("count", 0)),
        confidence=proposal.confidence,
        default_answer=rule.default_answer,
        default_after_s=rule.default_after_s,
        needs_two=needs_two(job.team, proposal.price_usd, proposal.kind),
        usd_per_hour=proposal.usd_per_hour,
        extra_usd=proposal.extra_usd,
    )


def _silence_s(proposal: Proposal, after_s: float) -> float:
    """When silence counts. An answer about machines must come while it is of use, so silence counts before that ends."""
    return min(after_s, 0.9 * proposal.expires_after_s) if proposal.direction == "forward" else after_s


def _standing(job: Job, proposal: Proposal) -> Decision | None:
    return Decision.objects.filter(job=job, rule=proposal.rule, subject=proposal.subject, status="proposed").first()


def decision_made(
    job: Job,
    proposal: Proposal,
    now: dt.datetime,
    situation: dict[str, Any],
    rule: Rule,
    verdict: Verdict,
    requested_by: User | None = None,
) -> Decision:
    """A proposal as a decision that has no number yet and is not written."""
    decision = Decision(
        team=job.team,
        job=job,
        kind=proposal.kind,
        direction=proposal.direction,
        rule=proposal.rule,
        subject=proposal.subject,
        sentence=proposal.sentence,
        args=proposal.args,
        allowed=proposal.allowed,
        evidence=proposal.evidence,
        expected=proposal.expected_json(),
        price_usd=str(round(proposal.price_usd, 4)),
        waiting_usd_per_hour=str(round(proposal.waiting_usd_per_hour, 4)),
        situation=situation,
        status="proposed",
        created_at=now,
        status_at=now,
        expires_at=now + dt.timedelta(seconds=proposal.expires_after_s),
        autonomy=rule.autonomy,
        autonomy_reason=verdict.reason,
        requested_by=requested_by,
    )
    if verdict.default_after_s is not None:
        decision.default_answer = verdict.default_answer
        decision.default_at = now + dt.timedelta(seconds=_silence_s(proposal, verdict.default_after_s))
    return decision


def numbers_take(*, team_id: int, num: int) -> list[int]:
    """The team's next numbers for decisions. In the caller's transaction, which holds the team's row from here on."""
    Team.objects.filter(pk=team_id).update(last_decision_number=F("last_decision_number") + num)
    last = Team.objects.values_list("last_decision_number", flat=True).get(pk=team_id)
    return list(range(last - num + 1, last + 1))


def proposed_event(decision: Decision, now: dt.datetime, requested_by: User | None = None) -> dict[str, Any]:
    """What the history says of a new proposal."""
    return {
        "team": decision.team,
        "job": decision.job,
        "kind": "decision.proposed",
        "subject": decision,
        "now": now,
        "actor": Actor.person(requested_by) if requested_by else Actor.rule(decision.rule),
        "text": f"{decision}: {decision.sentence}",
    }


def _approve_by_rule(decision: Decision, kind: str, reason: str, now: dt.datetime) -> None:
    from jobs.services.approvals import decision_approve

    decision_approve(decision=decision, now=now, by_rule=kind, reason=reason)


def decision_executing(*, decision: Decision, now: dt.datetime) -> None:
    """Its command has been claimed. Harmless to repeat."""
    if decision.status == "approved":
        state_move(decision, "executing", now=now, executed_at=now, text=f"{decision} is being carried out.")


def decision_applied(*, decision: Decision, step: int, now: dt.datetime) -> None:
    """The trainer works under it since `step`."""
    decision.refresh_from_db()
    if decision.status == "approved":
        decision_executing(decision=decision, now=now)
    if decision.status == "executing":
        state_move(decision, "succeeded", now=now, applied_step=step, text=f"{decision} in force since step {step}.")


def decision_failed(*, decision: Decision, now: dt.datetime, error: str, overtaken: bool = False) -> None:
    """It could not be carried out, or a newer order took over on the way. Harmless if it is over already."""
    decision.refresh_from_db()
    if decision.status not in ("approved", "executing"):
        return
    to, word = ("superseded", "gave way") if overtaken else ("failed", "failed")
    state_move(decision, to, now=now, failure=error, text=f"{decision} {word}: {error}")


def decisions_close(*, job: Job, now: dt.datetime, reason: str) -> None:
    """Close what still waits for an answer when its subject has ended, and fail what was under way."""
    for decision in job.decisions.filter(status="proposed"):
        _expire(decision, now, reason)
    for decision in job.decisions.filter(status__in=("approved", "executing")):
        decision_failed(decision=decision, now=now, error=reason)


def decision_withdraw(*, decision: Decision, now: dt.datetime, reason: str) -> None:
    """Close a standing proposal whose ground has gone. Harmless if it was answered in the same moment."""
    _expire(decision, now, reason)


def decision_measured(*, decision: Decision, outcome: dict[str, Any], now: dt.datetime) -> bool:
    """Store the measured effect, once."""
    with transaction.atomic():
        won = Decision.objects.filter(pk=decision.pk, outcome_at=None).update(outcome=outcome, outcome_at=now)
        if won:
            event_append(
                team=decision.team,
                job=decision.job,
                kind="decision.measured",
                subject=decision,
                now=now,
                text=f"{decision} {outcome['verdict']}: {outcome['sentence']}",
                data=outcome,
            )
    return won == 1


def decisions_sweep(*, now: dt.datetime) -> int:
    """Expire what nobody answered in time, answer by default where silence counts, plan anew what was asked at another price.

    Returns how many were closed.
    """
    from jobs.services.approvals import decision_answer_by_default

    closed = 0
    for decision in Decision.objects.filter(status="proposed", default_at__lte=now).exclude(default_answer=""):
        decision_answer_by_default(decision=decision, now=now)
        closed += 1
    for decision in Decision.objects.filter(status="proposed", expires_at__lte=now):
        closed += _expire(decision, now, "Nobody answered in time.")
    for decision in Decision.objects.filter(status="proposed", job__status__in=JOB_OVER):
        closed += _expire(decision, now, "The job has ended.")
    asks_look_again(now=now)
    return closed


def _expire(decision: Decision, now: dt.datetime, reason: str) -> int:
    try:
        state_move(decision, "expired", now=now, actor=SYSTEM, text=f"{decision} expired: {reason}", failure=reason)
    except StaleWrite:
        return 0  # answered in the same moment
    return 1
