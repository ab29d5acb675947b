"""What the main job must have shown. Each check looks at what the API says, and explains itself with numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MIN_SAMPLES = 2000
MIN_SHARDS = 6
MIN_STEPS = {"tiny": 300, "smollm2": 60}


@dataclass
class Evidence:
    """All that the demo has gathered over REST and from the trainer's own files, as JSON."""

    model: str
    damaged: str
    report: dict[str, Any]
    dataset_shards: list[dict[str, Any]]
    decisions: list[dict[str, Any]]
    new_samples: list[dict[str, Any]]
    series: dict[str, Any]
    totals: dict[str, Any]
    applied_by_rank: dict[str, dict[int, int]] = field(default_factory=dict)  # directive -> rank -> step
    pickup_s: dict[str, float] = field(default_factory=dict)  # decision -> seconds from its approval to being in force


@dataclass(frozen=True)
class Finding:
    name: str
    held: bool
    text: str


def data_is_real(e: Evidence) -> Finding:
    samples = sum(s["num_samples"] for s in e.dataset_shards)
    held = samples >= MIN_SAMPLES and len(e.dataset_shards) >= MIN_SHARDS
    return Finding("real data in several shards", held, f"{samples} samples in {len(e.dataset_shards)} shards")


def trained(e: Evidence) -> Finding:
    job = e.report["job"]
    held = job["status"] == "succeeded" and job["steps_done"] >= MIN_STEPS[e.model] and job["num_workers"] >= 2
    return Finding(
        "trained by several processes",
        held,
        f"{job['steps_done']} steps on {job['num_workers']} workers, {job['status']}",
    )


def deadline_met(e: Evidence) -> Finding:
    times, job = e.report["times"], e.report["job"]
    return Finding(
        "ended before its deadline",
        job["met_deadline"] is True,
        f"ended {times['ended_at']}, deadline {job['deadline']}",
    )


def series_complete(e: Evidence) -> Finding:
    """The server's sums equal the trainer's own count, and every shard has losses over the whole run."""
    told = e.series["totals"]
    same = told["tokens"] == e.totals.get("tokens") and told["samples"] == e.totals.get("samples")
    empty = [s["shard"] for s in e.series["shards"] if not s["num_points"]]
    held = same and not empty and e.series["last_step"] == e.report["job"]["goal_steps"] - 1
    theirs = f"{e.totals.get('tokens')} and {e.totals.get('samples')}"
    text = f"server {told['tokens']} tokens and {told['samples']} samples, trainer {theirs}"
    return Finding("every loss arrived", held, text + (f"; nothing of {', '.join(empty)}" if empty else ""))


def damage_found(e: Evidence) -> Finding:
    named = sorted({d["subject"] for d in e.decisions if d["kind"] in ("augment_shard", "pause_shard")})
    return Finding(
        "the damaged shard was found, and no other",
        named == [f"shard:{e.damaged}"],
        ", ".join(named) or "nothing found",
    )


def approved_by_rule(e: Evidence) -> Finding:
    answers = [a for d in _repairs(e) for a in d["answers"]]
    held = bool(answers) and all(a["answer"] == "approve" and "rule" in a["by"] for a in answers)
    return Finding("approved by rule", held, "; ".join(f"{a['answer']} by {a['by']}" for a in answers) or "no answer")


def augmented(e: Evidence) -> Finding:
    made = [a for a in e.report["augmentations"] if a["shard"] == e.damaged and a["status"] == "delivered"]
    keys = ("parent", "method", "generator")
    told = bool(e.new_samples) and all(s.get(k) for s in e.new_samples for k in keys)
    text = f"{sum(a['num_made'] for a in made)} samples made, {len(e.new_samples)} with {', '.join(keys)}"
    return Finding("augmented with provenance", bool(made) and told, text)


def picked_up_together(e: Evidence) -> Finding:
    steps = [set(ranks.values()) for ranks in e.applied_by_rank.values()]
    workers = e.report["job"]["num_workers"]
    held = (
        bool(steps) and all(len(s) == 1 for s in steps) and all(len(r) == workers for r in e.applied_by_rank.values())
    )
    return Finding("taken in at one step on every rank", held, str(e.applied_by_rank or "no directive was applied"))


def loss_fell(e: Evidence) -> Finding:
    outcomes = [d["outcome"] for d in _repairs(e) if d["outcome"]]
    held = bool(outcomes) and all(o["verdict"] == "helped" and o["loss_after"] < o["loss_before"] for o in outcomes)
    return Finding(
        "the loss of the replaced data fell", held, "; ".join(o["sentence"] for o in outcomes) or "not measured"
    )


def quick(e: Evidence) -> Finding:
    """From the answer to the samples in the training queue: two minutes at most (the pretrained model may take longer)."""
    waits = list(e.pickup_s.values())
    limit = 120 if e.model == "tiny" else 600
    held = bool(waits) and max(waits) <= limit
    return Finding("in the training queue in time", held, ", ".join(f"{w:.0f} s" for w in waits) + f" of {limit} s")


def report_whole(e: Evidence) -> Finding:
    wanted = ("job", "times", "compute", "totals", "loss", "shards", "decisions", "augmentations", "attempts")
    missing = [k for k in wanted if k not in e.report]
    hours = e.report.get("compute", {}).get("worker_hours") or 0
    return Finding(
        "the report is whole",
        not missing and hours > 0,
        f"missing: {', '.join(missing) or 'nothing'}; {hours:.3f} worker-hours",
    )


def _repairs(e: Evidence) -> list[dict[str, Any]]:
    return [d for d in e.report["decisions"] if d["kind"] == "augment_shard" and d["subject"] == f"shard:{e.damaged}"]


CHECKS: tuple[Callable[[Evidence], Finding], ...] = (
    data_is_real,
    trained,
    series_complete,
    damage_found,
    approved_by_rule,
    augmented,
    picked_up_together,
    quick,
    loss_fell,
    deadline_met,
    report_whole,
)
