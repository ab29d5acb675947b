"""Many proposals at once: the same rows, events and orders as one by one, in one transaction per batch.

Fit for a batch is what a rule answers by itself or asks about, with no proposal that stands in its way, no limit that counts what
was used, and no second approval. The rest, and a batch that met another writer, goes one by one.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction

from jobs.models import Approval, Command, Decision, Event, Job, PlanState, Rule
from jobs.scheduler.autonomy import Usage, Verdict
from jobs.scheduler.proposal import Proposal
from jobs.selectors.planning import Rules, rule_in_force
from jobs.services.approvals import approved_words, decision_key
from jobs.services.commands import command_made, command_ring, issued_event
from jobs.services.decisions import (
    decision_made,
    decision_propose,
    numbers_take,
    proposed_event,
    verdict_on,
)
from jobs.services.events import Actor, event_made, events_append
from jobs.services.rules import rule_unset

BATCH = 200


@dataclass(frozen=True)
class Offered:
    """A proposal of the planner for a job. `stands`: another on the same subject waits for an answer already; `anew`: why that one
    gives way though it asks for the same."""

    job: Job
    proposal: Proposal
    situation: dict[str, Any]
    stands: bool = False
    anew: str = ""


def decisions_propose(*, offered: Sequence[Offered], rules: Rules, now: dt.datetime) -> list[Decision | None]:
    """One answer per proposal, in order, as `decision_propose` gives it. `rules`: (team id, job id or None, kind) -> rule."""
    answers: list[Decision | None] = [None] * len(offered)
    fit: list[tuple[int, Offered, Rule, Verdict]] = []
    for place, one in enumerate(offered):
        rule = _rule(one, rules)
        if one.stands or rule.limits or one.job.team.two_person:
            answers[place] = _alone(one, now)
            continue
        verdict = verdict_on(job=one.job, proposal=one.proposal, rule=rule, usage=Usage())
        if verdict.answer != "drop":
            fit.append((place, one, rule, verdict))
    for batch in _batches(fit):
        try:
            made: Sequence[Decision | None] = _write(batch, now)
        except IntegrityError:
            made = [_alone(one, now) for _, one, _, _ in batch]
        for (place, *_), decision in zip(batch, made, strict=True):
            answers[place] = decision
    return answers


def _rule(one: Offered, rules: Rules) -> Rule:
    team, kind = one.job.team, one.proposal.kind
    return rule_in_force(rules, one.job, kind) or rule_unset(team=team, kind=kind)


def _alone(one: Offered, now: dt.datetime) -> Decision | None:
    return decision_propose(job=one.job, proposal=one.proposal, now=now, situation=one.situation, anew=one.anew)


def _batches(fit: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(fit), BATCH):
        yield fit[start : start + BATCH]


@transaction.atomic
def _write(batch: list[tuple[int, Offered, Rule, Verdict]], now: dt.datetime) -> list[Decision]:
    decisions = [
        decision_made(one.job, one.proposal, now, one.situation, rule, verdict) for _, one, rule, verdict in batch
    ]
    _number(decisions)
    yes = {i: Actor.rule(rule.kind) for i, (_, _, rule, verdict) in enumerate(batch) if verdict.answer == "approve"}
    for i in yes:
        decisions[i].status = "approved"
    Decision.objects.bulk_create(decisions)
    orders = {i: _order(decisions[i], now) for i in yes}
    Command.objects.bulk_create(orders.values())
    Approval.objects.bulk_create(
        Approval(
            decision=decisions[i], by_rule=batch[i][2].kind, answer="approve", reason=batch[i][3].reason, created_at=now
        )
        for i in yes
    )
    PlanState.objects.filter(job__in=[decisions[i].job_id for i in yes]).update(changed_at=now)
    events: list[Event] = []
    for i, decision in enumerate(decisions):
        events.append(event_made(**proposed_event(decision, now)))
        if i in yes:
            events.append(_approved_event(decision, yes[i], batch[i][3].reason, now))
            events.append(event_made(**issued_event(orders[i], now, yes[i])))
    events_append(events)
    for order in orders.values():
        command_ring(order)
    return decisions


def _number(decisions: list[Decision]) -> None:
    by_team: dict[int, list[Decision]] = defaultdict(list)
    for decision in decisions:
        by_team[decision.team_id].append(decision)
    for team_id, mine in sorted(by_team.items()):
        for decision, number in zip(mine, numbers_take(team_id=team_id, num=len(mine)), strict=True):
            decision.number = number


def _order(decision: Decision, now: dt.datetime) -> Command:
    key = decision_key(decision)
    return command_made(job=decision.job, kind=decision.kind, key=key, now=now, args=decision.args, decision=decision)


def _approved_event(decision: Decision, actor: Actor, reason: str, now: dt.datetime) -> Event:
    """As a move from proposed to approved leaves it."""
    data = {"from": "proposed", "to": "approved", "args": decision.args, "edited": {}}
    return event_made(
        team=decision.team,
        job=decision.job,
        kind="decision.approved",
        subject=decision,
        now=now,
        actor=actor,
        text=approved_words(decision, actor, reason),
        data=data,
    )
