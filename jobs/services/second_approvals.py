"""Two approvals of the same arguments, where a team wants two for what is costly.

Who changes the arguments makes the approvals given so far void. A rule, or silence that counts as a yes, is one of the two at most,
and none for what passes the rule's limits.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from jobs.errors import AlreadyAnswered, Conflict
from jobs.models import Approval, Decision
from jobs.scheduler.arguments import in_words, price_with
from jobs.scheduler.autonomy import exceeded
from jobs.selectors.decisions import approvals_in_force, args_in_force
from jobs.services.events import Actor, event_append
from jobs.services.rules import needs_two, rule_for, rule_usage

if TYPE_CHECKING:
    from django.contrib.auth.models import User


def waits_for_another(decision: Decision, final: dict[str, Any]) -> bool:
    """Whether the approvals in force are one too few for these arguments."""
    if not needs_two(decision.team, price_with(float(decision.price_usd), decision.args, final), decision.kind):
        return False
    given = Approval.objects.filter(decision=decision, answer="approve", void_at=None)
    people = given.filter(user__isnull=False).values("user").distinct().count()
    return people + given.filter(by_rule__gt="").exists() < 2


def seen_check(decision: Decision, in_force: dict[str, Any], seen: dict[str, Any] | None, user: User | None) -> None:
    """Nobody approves arguments that were not shown to them."""
    if (in_force if seen is None else seen) == in_force and (seen is not None or in_force == decision.args):
        return
    if user is None:
        raise AlreadyAnswered(f"A person edited {decision}; a rule approves only what was proposed.")
    raise Conflict(
        f"The arguments of {decision} were edited by another approver: {in_words(in_force, decision.args)}. Read them again "
        "and answer with the arguments in force as seen_args."
    )


def approvals_make_void(decision: Decision, final: dict[str, Any], now: dt.datetime, actor: Actor) -> None:
    """Other arguments than those approved so far: the count begins again."""
    given = approvals_in_force(decision=decision)
    if not given:
        return
    Approval.objects.filter(pk__in=[approval.pk for approval in given]).update(void_at=now)
    names = ", ".join(str(approval.user or f"rule {approval.by_rule}") for approval in given)
    event_append(
        team=decision.team,
        job=decision.job,
        kind="decision.approval_void",
        subject=decision,
        now=now,
        actor=actor,
        text=f"{actor.label} changed {decision} ({in_words(final, decision.args)}): the approval of {names} is void.",
        data={"args": final},
    )


def half_tell(decision: Decision, final: dict[str, Any], now: dt.datetime, actor: Actor, reason: str) -> None:
    """The first of two."""
    event_append(
        team=decision.team,
        job=decision.job,
        kind="decision.half_approved",
        subject=decision,
        now=now,
        actor=actor,
        text=f"{actor.label} approved {decision} ({in_words(final, decision.args)}), one of two. {reason}".rstrip(),
        data={"args": final},
    )


def silence_is_no_yes(decision: Decision, now: dt.datetime) -> str:
    """Why nobody's answer may not count as a yes where two have to approve; empty where it may."""
    if not needs_two(decision.team, float(decision.price_usd), decision.kind):
        return ""
    if any(approval.by_rule for approval in approvals_in_force(decision=decision)):
        return "a rule has approved it already"
    if args_in_force(decision=decision) != decision.args:
        return "its arguments were edited"
    rule = rule_for(job=decision.job, kind=decision.kind)
    over = exceeded(
        limits=rule.limits,
        usage=rule_usage(rule=rule, job=decision.job, now=now),
        price_usd=float(decision.price_usd),
        num_samples=int(decision.args.get("count", 0)),
        confidence=float(decision.expected.get("confidence", 0.0)),
        usd_per_hour=float(decision.expected.get("usd_per_hour", 0.0)),
        extra_usd=float(decision.expected.get("extra_usd", 0.0)),
    )
    return "; ".join(over)
