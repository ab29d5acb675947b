"""Decisions of the sample world: open, answered, automatic, measured."""

from __future__ import annotations

import datetime as dt
from typing import Any

from jobs.models import Decision, Job, Team
from jobs.scheduler.proposal import Effect, Proposal
from jobs.services.approvals import decision_approve, decision_reject
from jobs.services.decisions import decision_applied, decision_propose
from jobs.services.events import Actor
from jobs.services.rules import rule_set

ALLOWED = {
    "count": {"min": 1, "max": 1000, "integer": True},
    "method": ["self_generate", "paraphrase", "eda"],
    "priority": ["high", "normal", "low"],
    "mode": ["replace", "extend"],
}
LEARNT = "Lower the weight of dialogue_001 from 1 to 0.5: it shows no gain in 1,400 steps although it is sampled."
MEASURED = {
    "verdict": "helped",
    "delta_loss": -1.41,
    "expected_delta_loss": -1.25,
    "loss_before": 2.99,
    "loss_after": 1.4,
    "sentence": "Loss of neuro_002 went from 2.99 to 1.40 nats per token over 512 steps; the other shards changed by -0.18, so the "
    "effect is -1.41 (expected -1.25).",
}


def make_decisions(jobs: dict[str, Job], approver: Any, now: dt.datetime) -> list[Decision]:
    """Three that are over and three that wait."""
    job, chat = jobs["clinqa-8b-sft"], jobs["support-chat-7b-sft"]
    make_rules(job.team, Actor.person(approver), now)

    def ago(hours: float) -> dt.datetime:
        return now - dt.timedelta(hours=hours)

    helped = proposed(job, "neuro_002", 2.99, 1.6, ago(6))
    decision_approve(decision=helped, now=ago(5.9), user=approver)
    decision_applied(decision=helped, step=5_440, now=ago(5.8))
    Decision.objects.filter(pk=helped.pk).update(outcome=MEASURED, outcome_at=ago(4))
    pause = proposed(job, "icu_notes_002", 9.0, 1.5, ago(5), **pausing("icu_notes_002"))
    decision_applied(decision=pause, step=2_976, now=ago(4.9))
    no = proposed(job, "onco_003", 1.9, 1.5, ago(4))
    decision_reject(
        decision=no, now=ago(3.9), user=approver, reason="A known hard field; wait for the next evaluation."
    )
    hot = proposed(job, "pharma_003", 2.07, 1.12, now, expires_after_s=45 * 60.0, waiting_usd_per_hour=1.9)
    learnt = proposed(job, "dialogue_001", 0.93, 0.92, now, **reweighting())
    late = proposed(chat, "cardio_002", 1.98, 1.3, now, expires_after_s=6 * 86_400.0)
    return [helped, pause, no, hot, learnt, late]


def make_rules(team: Team, actor: Actor, now: dt.datetime) -> None:
    limits = {"max_per_hour": 4, "min_confidence": 0.9}
    rule_set(team=team, kind="pause_shard", autonomy="auto_within_limits", limits=limits, now=now, actor=actor)
    silence = {"default_answer": "approve", "default_after_s": 10_800}
    rule_set(team=team, kind="reweight_shards", autonomy="ask_default", now=now, actor=actor, **silence)
    limits = {"max_usd": 5, "max_samples_per_day": 1000}
    rule_set(team=team, kind="augment_shard", autonomy="ask", limits=limits, now=now, actor=actor)


def proposed(job: Job, key: str, loss: float, peers: float, now: dt.datetime, **fields: Any) -> Decision:
    decision = decision_propose(job=job, proposal=proposal(key, loss, peers, **fields), now=now)
    assert decision is not None
    return decision


def proposal(key: str, loss: float, peers: float, **fields: Any) -> Proposal:
    """What the shard-loss rule says about a shard at `loss` in a category at `peers`, with `fields` changed."""
    wanted, actions = -0.9 * (loss - peers), {"action": "augment_shard", "shard_id": key}
    given: dict[str, Any] = {
        "rule": "shard_loss",
        "kind": "augment_shard",
        "subject": f"shard:{key}",
        "sentence": f"Replace the samples of {key} by 200 made with self_generate: its loss is {loss:.2f} where its category has "
        f"{peers:.2f}, and it does not learn.",
        "args": {**actions, "method": "self_generate", "count": 200, "priority": "high", "mode": "replace"},
        "allowed": ALLOWED,
        "evidence": evidence(loss, peers),
        "delta_loss": Effect(wanted, wanted - 0.4, min(0.0, wanted + 0.4)),
        "delta_cost_usd": Effect(0.31, 0.0, 0.62),
        "delta_eta_s": Effect(0.0, 0.0, 10.0),
        "confidence": 0.93,
        "price_usd": 0.31,
        "waiting_usd_per_hour": 1.4,
        "expires_after_s": 5 * 3600.0,
    }
    return Proposal(**{**given, **fields})


def evidence(loss: float, peers: float) -> dict[str, Any]:
    return {
        "loss_now": loss,
        "own_past": round(peers + 0.3, 2),
        "z_own": 6.1,
        "category_loss": peers,
        "z_category": 7.4,
        "z_needed": 4.0,
        "num_peers": 2,
        "gap_change": 0.31,
        "z_gap_change": 5.2,
        "share_high": 1.0,
        "tokens_now": 41_300,
        "num_nonfinite": 0,
        "window_steps": 512,
        "step": 7_616,
    }


def pausing(key: str) -> dict[str, Any]:
    return {
        "kind": "pause_shard",
        "args": {"action": "pause_shard", "shard_id": key},
        "allowed": {},
        "sentence": f"Pause {key}: 12 of its recent losses are not finite.",
        "delta_loss": None,
        "delta_cost_usd": None,
        "delta_eta_s": None,
        "confidence": 0.95,
        "price_usd": 0.0,
    }


def reweighting() -> dict[str, Any]:
    return {
        "kind": "reweight_shards",
        "args": {"action": "reweight_shards", "weights": {"dialogue_001": 0.5}},
        "allowed": {},
        "sentence": LEARNT,
        "delta_loss": Effect(-0.006, -0.012, 0.002),
        "delta_cost_usd": None,
        "price_usd": 0.0,
        "waiting_usd_per_hour": 0.0,
    }
