"""What the detail of a decision says: evidence in words, effects with their intervals, what a yes, a no and silence lead to."""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass
from typing import Any

from jobs.access import role_reaches
from jobs.models import Decision
from jobs.scheduler.arguments import in_words, price_with
from jobs.selectors.decisions import (
    approval_role,
    approvals_in_force,
    args_in_force,
    decision_history,
    decision_newer,
    decisions_related,
    rule_record,
)
from jobs.services.rules import needs_two
from webapp import formats
from webapp.pages import machine_decisions
from webapp.templatetags.cf import loss_change, span_change, usd_change

HOUR, DAY = dt.timedelta(hours=1), dt.timedelta(days=1)

# What rules store as evidence -> (what it is called, its unit). Others are shown by their own name.
EVIDENCE = {
    "loss_now": ("Loss now", "nats per token"),
    "own_past": ("Own past, median", "nats per token"),
    "z_own": ("Against its own past, robust z", "standard deviations"),
    "category_loss": ("Its category, median", "nats per token"),
    "z_category": ("Against its category, robust z", "standard deviations"),
    "z_needed": ("z from which the rule speaks", "standard deviations"),
    "num_peers": ("Shards of its category", "shards"),
    "gap_change": ("Distance from its category has changed by", "nats per token"),
    "z_gap_change": ("That change over its standard error", "standard errors"),
    "loss_series": ("Its loss over the bins seen", "nats per token"),
    "category_series": ("Its category's over the same bins", "nats per token"),
    "share_high": ("Share of the window above its category", ""),
    "tokens_now": ("Seen in the window", "tokens"),
    "tokens": ("Seen in the window", "tokens"),
    "num_nonfinite": ("Losses that are not finite", "points"),
    "window_steps": ("Window", "steps"),
    "slow_factor": ("Its own time for a micro-batch, against the others'", "times"),
    "slow_needed": ("From which a worker counts as slow", "times"),
    "slow_share": ("Share of the window in which it was slow", ""),
    "micro_series_s": ("Its own time for a micro-batch, over the bins seen", "s"),
    "micro_times_s": ("Own time for a micro-batch, by worker", "s"),
    "throttled": ("Its accelerator says that it is kept slow", ""),
    "shares_now": ("Micro-batches of a step now, by worker", ""),
    "shares_after": ("Micro-batches of a step then", ""),
    "step_time_s": ("A step takes", "s"),
    "step_time_after_s": ("It would take", "s"),
    "step_time_rebalanced_s": ("With a smaller share for the slow worker", "s"),
    "changeover_s": ("Until the new workers train", "s"),
    "step": ("At step", ""),
    "goal_steps": ("Of steps", "steps"),
    "share_done": ("Share done", ""),
    "target_loss": ("Target loss", "nats per token"),
    "chance_target": ("Chance to reach the target within its steps", ""),
    "fall_expected": ("Expected fall of the loss", "nats per token"),
    "fall_steps": ("Over the next", "steps"),
    "paused_since_step": ("Paused since step", ""),
    **machine_decisions.EVIDENCE,
}
EFFECTS = (
    ("delta_loss", "Loss of the shard, nats per token", loss_change),
    ("delta_cost_usd", "Cost", usd_change),
    ("delta_eta_s", "Finish", span_change),
    ("cost_usd", "Cost from then to the end", formats.usd),
    ("finish_s", "Done after", formats.span),
)


@dataclass(frozen=True)
class EvidenceLine:
    label: str
    value: str
    unit: str
    series: list[float | None] | None = None


@dataclass(frozen=True)
class EffectLine:
    """`effect` as stored (expected, low, high), with its words."""

    name: str
    label: str
    short: str
    effect: dict[str, float]
    expected: str
    interval: str
    measured: float | None = None
    measured_word: str = ""


def evidence_lines(evidence: dict[str, Any]) -> list[EvidenceLine]:
    """Known facts first, in the order of `EVIDENCE`; facts the rule could not measure are left out."""
    known = [name for name in EVIDENCE if name in evidence]
    rest = [name for name in evidence if name not in EVIDENCE and name != "index"]
    lines = [_evidence_line(name, evidence[name]) for name in [*known, *rest]]
    return [line for line in lines if line is not None]


def _evidence_line(name: str, value: Any) -> EvidenceLine | None:
    label, unit = EVIDENCE.get(name, (name.replace("_", " ").capitalize(), ""))
    if value is None or isinstance(value, dict):
        return None
    if isinstance(value, list):
        numbers = [v if formats.known(v) else None for v in value]
        return (
            EvidenceLine(label, f"{len(value)} values", unit, numbers) if any(v is not None for v in numbers) else None
        )
    if name in machine_decisions.SPANS:
        return EvidenceLine(label, formats.span(value), unit)
    if name in ("share_high", "slow_share", "chance", "share_done", "chance_target", "policy_weight"):
        return EvidenceLine(label, formats.percent(value), unit)
    if isinstance(value, bool):
        return EvidenceLine(label, "yes" if value else "no", unit)
    if isinstance(value, int):
        return EvidenceLine(label, formats.number(value), unit)
    return EvidenceLine(label, formats.figures(value) if formats.known(value) else str(value), unit)


def effect_lines(decision: Decision) -> list[EffectLine]:
    """Expected changes, and beside them what was measured."""
    lines = []
    for name, label, word in EFFECTS:
        effect = decision.expected.get(name)
        if not effect:
            continue
        measured = decision.outcome.get(name)
        interval = (
            f"{word(effect['low'])} to {word(effect['high'])}" if effect["low"] != effect["high"] else "no interval"
        )
        seen = word(measured) if formats.known(measured) else ""
        lines.append(
            EffectLine(name, label, label.split(" ")[0], effect, word(effect["expected"]), interval, measured, seen)
        )
    return lines


def urgency_groups(rows: list[Decision], now: dt.datetime) -> list[tuple[str, list[Decision]]]:
    """Open decisions by how soon their answer is due; within a group the given order stays."""
    groups: dict[str, list[Decision]] = {"Answer within the hour": [], "Today": [], "No hurry": []}
    for row in rows:
        left = min(filter(None, (row.expires_at, row.default_at))) - now
        name = "Answer within the hour" if left < HOUR else "Today" if left < DAY else "No hurry"
        groups[name].append(row)
    return [(name, found) for name, found in groups.items() if found]


def decision_detail(decision: Decision, role: str, now: dt.datetime) -> dict[str, Any]:
    """Context of the right-hand side."""
    needed = approval_role(decision=decision)
    is_open = decision.status == "proposed" and decision.expires_at > now
    approvals, args = approvals_in_force(decision=decision), args_in_force(decision=decision)
    return {
        "is_open": is_open,
        "may_answer": is_open and role_reaches(role, needed),
        "needed_role": needed,
        "record": rule_record(team=decision.team, rule=decision.rule),
        "evidence": evidence_lines(decision.evidence),
        "effects": effect_lines(decision),
        "history": decision_history(decision=decision),
        "related": decisions_related(decision=decision),
        "approvals": approvals,
        "answered_by": approvals[-1] if approvals else None,
        "newer": decision_newer(decision=decision),
        "num_yes": sum(a.answer == "approve" for a in approvals),
        "needs_two": needs_two(
            decision.team, price_with(float(decision.price_usd), decision.args, args), decision.kind
        ),
        "args": args,
        "args_text": json.dumps(args),
        "edits": in_words(args, decision.args) if args != decision.args and decision.status == "proposed" else "",
        "price_usd": price_with(float(decision.price_usd), decision.args, args),
        "yes": consequence(decision, args),
        "no": machine_decisions.follows_no(decision) if machine_decisions.is_about_machines(decision) else "",
        "data_jobs": list(decision.augmentations.all()),
    }


def consequence(decision: Decision, args: dict[str, Any]) -> str:
    """What follows a yes to these arguments, in a sentence with its numbers."""
    if machine_decisions.is_about_machines(decision):
        return machine_decisions.follows_yes(decision, args)
    name = args.get("shard_id", "the shard")
    if decision.kind == "augment_shard":
        how = "replace the samples it has" if args.get("mode") == "replace" else "are added to those it has"
        return (
            f"{formats.number(args.get('count'))} samples are made from {name} by {args.get('method')}, checked, and {how}. "
            f"The running trainer takes them in at one step on every rank, usually within two minutes."
        )
    if decision.kind == "pause_shard":
        return f"The trainer draws no more samples from {name} until it is resumed. Nothing is deleted."
    if decision.kind == "resume_shard":
        return f"The trainer draws samples from {name} again, with weight {formats.figures(args.get('weight'))}."
    if decision.kind == "reweight_shards":
        weights = ", ".join(f"{key} to {formats.figures(w)}" for key, w in args.get("weights", {}).items())
        return f"Sampling weights change from the next control point on: {weights}. Other shards keep theirs."
    if decision.kind in ("boost", "demote"):
        sign = "+" if decision.kind == "boost" else "-"
        return (
            f"{decision.job.name} gets {sign}{formats.number(args.get('points'))} points in the queue for machines, from the next "
            "plan on. An operator can take it back at any time."
        )
    if decision.kind == "resize":
        size = formats.number(args.get("num_workers"))
        return (
            f"The trainer saves its state inside the step it is in and leaves; {size} workers go on from there. Samples, global "
            f"batch and learning rate stay as they are."
        )
    if decision.kind == "rebalance":
        shares = ", ".join(f"{share:g} for worker {rank}" for rank, share in args.get("shares", {}).items())
        return (
            f"From the next step on its micro-batches are shared out as {shares}. Samples, their order, global batch and learning "
            "rate stay; a later rebalance or a resize takes it back."
        )
    if decision.kind == "drain_worker":
        return (
            f"The trainer saves its state inside the step it is in and leaves; {formats.number(args.get('num_workers'))} workers "
            f"go on from there, without the place of worker {args.get('rank')}. Samples, global batch and learning rate stay."
        )
    return f"A worker carries out {decision.kind.replace('_', ' ')} with the arguments below."
