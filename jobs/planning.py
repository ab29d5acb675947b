"""Where rules meet rows: build the situation, ask the pure rules, store what they propose, measure what was done."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

from jobs.deadlines import deadline_facts
from jobs.machines import is_planned
from jobs.models import Decision, Job, SignalState
from jobs.plan_outcomes import plan_outcomes_measure
from jobs.scheduler import procurement
from jobs.scheduler.completion import Completion
from jobs.scheduler.outcomes import shard_outcome
from jobs.scheduler.proposal import Proposal
from jobs.scheduler.rules import completion, deadline, shard_loss, straggler
from jobs.scheduler.situation import Situation
from jobs.services.completion import completion_update
from jobs.services.decisions import decision_measured, decision_propose, decision_withdraw
from jobs.services.hardness import hardness_record
from jobs.services.methods import can_be_augmented
from jobs.services.plans import pace_check
from jobs.situations import past_decisions, series_level, situation_build
from jobs.stragglers import pace_measured, straggler_facts

RULES: dict[str, Callable[[Situation], list[Proposal]]] = {shard_loss.RULE: shard_loss.propose}
OUTCOME_BINS = 8  # effect window, in bins on either side of the applied step
OUTCOME_PATIENCE = dt.timedelta(days=7)


def job_evaluate(*, job: Job, now: dt.datetime) -> list[Decision]:
    """Ask every rule about a running job, if it has gone on by at least one bin since the last time."""
    state, _ = SignalState.objects.get_or_create(job=job)
    width = 4 ** series_level(job.goal_steps)
    if job.status != "running" or job.current_step < state.evaluated_step + width:
        return []
    seen = SignalState.objects.filter(pk=state.pk, evaluated_step=state.evaluated_step)
    if not seen.update(evaluated_step=job.current_step, evaluated_at=now):
        return []  # another clock is at it
    made = []
    for name, propose in RULES.items():
        situation = situation_build(job=job, rule=name, now=now)
        proposals = [p for p in propose(situation) if p.kind != "augment_shard" or can_be_augmented(job)]
        _withdraw_stale(job, name, {p.subject for p in proposals}, now)
        stored = situation.as_json() if proposals else {}
        for proposal in proposals:
            decision = decision_propose(job=job, proposal=proposal, now=now, situation=stored)
            if decision is not None:
                made.append(decision)
    if is_planned(job):
        pace_check(job=job, step_time_s=situation.step_time_s, now=now)
    hardness_record(job=job, situation=situation, now=now)
    found = completion_update(job=job, now=now)
    made += deadline_evaluate(job=job, now=now) + stragglers_evaluate(job=job, now=now)
    return made + (priority_evaluate(job=job, found=found, now=now) if is_planned(job) else [])


def deadline_evaluate(*, job: Job, now: dt.datetime) -> list[Decision]:
    """Ask the deadline rule; a standing proposal that it would no longer make closes itself. Planned jobs are the epoch's."""
    if is_planned(job):
        return []
    facts = deadline_facts(job=job, now=now)
    proposals = deadline.propose(facts) if facts is not None else []
    _withdraw_stale(job, deadline.RULE, {p.subject for p in proposals}, now)
    made = (decision_propose(job=job, proposal=proposal, now=now) for proposal in proposals)
    return [decision for decision in made if decision is not None]


def stragglers_evaluate(*, job: Job, now: dt.datetime) -> list[Decision]:
    """Ask the rule for slow workers; a standing proposal that it would no longer make closes itself."""
    facts = straggler_facts(job=job, now=now)
    proposals = straggler.propose(facts) if facts is not None else []
    _withdraw_stale(job, straggler.RULE, {p.subject for p in proposals}, now)
    stored = facts.as_json() if facts is not None else {}
    made = (decision_propose(job=job, proposal=p, now=now, situation=stored) for p in proposals)
    return [decision for decision in made if decision is not None]


def priority_evaluate(*, job: Job, found: Completion, now: dt.datetime) -> list[Decision]:
    """Ask the rule for the job's place in the queue; a standing proposal that it would no longer make closes itself."""
    past = past_decisions(job=job, rule=completion.RULE, now=now)
    facts = completion.CompletionFacts(found, job.boost, past, job.config.get("rules", {}).get(completion.RULE, {}))
    proposals = completion.propose(facts)
    _withdraw_stale(job, completion.RULE, {p.subject for p in proposals}, now)
    made = (decision_propose(job=job, proposal=p, now=now, situation=facts.as_json()) for p in proposals)
    return [decision for decision in made if decision is not None]


def _withdraw_stale(job: Job, rule: str, subjects: set[str], now: dt.datetime) -> None:
    """A standing proposal whose ground has gone for a whole window closes itself."""
    window = 8 * 4 ** series_level(job.goal_steps)
    for decision in job.decisions.filter(rule=rule, status="proposed", requested_by=None):
        if decision.subject not in subjects and job.current_step - decision.evidence.get("step", 0) > window:
            decision_withdraw(decision=decision, now=now, reason="What it rested on no longer holds.")


def outcomes_measure(*, now: dt.datetime) -> int:
    """Measure the decisions whose effect window is full. Returns how many."""
    waiting = Decision.objects.filter(
        status="succeeded", outcome_at=None, applied_step__isnull=False, status_at__gte=now - OUTCOME_PATIENCE
    ).exclude(rule=procurement.RULE)
    rows = waiting.select_related("job", "job__team")
    return plan_outcomes_measure(now=now) + sum(outcome_measure(decision=d, now=now) for d in rows)


def outcome_measure(*, decision: Decision, now: dt.datetime) -> bool:
    """Measure one decision if its window is full, or as far as it goes once the job is over."""
    job, step = decision.job, decision.applied_step
    if decision.rule == straggler.RULE:
        found = pace_measured(decision=decision, num_bins=OUTCOME_BINS)
        return found is not None and decision_measured(decision=decision, outcome=found, now=now)
    key = decision.subject.removeprefix("shard:")
    if step is None or key == decision.subject:
        return False
    width = 4 ** series_level(job.goal_steps)
    situation = situation_build(job=job, rule=decision.rule, now=now, since_step=max(0, step - OUTCOME_BINS * width))
    window = OUTCOME_BINS * width
    if job.ended_at is not None:
        window = max(width, min(window, job.current_step - step))
    outcome = shard_outcome(situation, key=key, applied_step=step, window_steps=window, expected=decision.expected)
    if outcome is None:
        return False
    return decision_measured(decision=decision, outcome=outcome, now=now)
