"""What the job under a moving market must have shown. Each check explains itself with numbers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from jobs.demo.checks import Finding
from jobs.demo.market_job import STEPS, MarketEvidence

MIN_NOTICES = 2
MIN_RESIZES = 3


def finished_in_time(e: MarketEvidence) -> Finding:
    job = e.report["job"]
    held = job["status"] == "succeeded" and job["met_deadline"] is True and job["steps_done"] == STEPS
    text = (
        f"{job['steps_done']} steps, {job['status']}, ended {e.report['times']['ended_at']}, deadline {job['deadline']}"
    )
    return Finding("the planned job ended before its deadline", held, text)


def was_preempted(e: MarketEvidence) -> Finding:
    num = sum(event["kind"] == "instance.notice" for event in e.events)
    return Finding("machines were taken away while it ran", num >= MIN_NOTICES, f"{num} notices of the provider")


def was_resized(e: MarketEvidence) -> Finding:
    """Attempts that went on with more or fewer workers, each from a snapshot whose digest it proved."""
    attempts = [a for a in e.report["attempts"] if a["started_at"]]
    worlds = [a["world_size"] for a in attempts]
    proved = sum(event["kind"] == "snapshot.proved" for event in e.events)
    differs = sum(event["kind"] == "snapshot.differs" for event in e.events)
    resizes = sum(before != after for before, after in pairwise(worlds))
    held = resizes >= MIN_RESIZES and proved >= len(worlds) - 1 and not differs
    text = f"workers {' -> '.join(map(str, worlds))}: {resizes} resizes; {proved} loads equal, {differs} not"
    return Finding("resized through proved snapshots", held, text)


def on_demand_was_asked_for(e: MarketEvidence) -> Finding:
    """An ask for on-demand that stood open, was answered by the rule, and was used."""
    asked = [d for d in e.report["decisions"] if d["kind"] == "switch_to_on_demand"]
    waits = [w for d in asked if (w := _waited_s(d)) is not None]
    bought = sum(line["kind"] == "on_demand" for line in e.report["compute"]["instances"])
    held = bool(waits) and max(waits) >= 1 and bought > 0
    told = ", ".join(f"{wait:.1f} s" for wait in waits) or "none"
    return Finding(
        "on-demand waited for an approval", held, f"{len(asked)} asked, waits {told}; {bought} machines bought"
    )


def _waited_s(decision: dict[str, Any]) -> float | None:
    """Seconds from the ask to the rule's yes, None without one."""
    yes = any(a["answer"] == "approve" and "rule" in a["by"] for a in decision["answers"])
    if not yes or not decision["executed_at"]:
        return None
    return (_moment(decision["executed_at"]) - _moment(decision["proposed_at"])).total_seconds()


def _moment(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text)


def trained_the_same(e: MarketEvidence) -> Finding:
    """Every loss of every shard at every step is that of the twin that nobody disturbed, to the ninth digit (`fidelity: exact`)."""
    missing = e.twin_losses.keys() ^ e.losses.keys()
    both = e.twin_losses.keys() & e.losses.keys()
    unequal = sum(e.losses[key] != e.twin_losses[key] for key in both)
    held = not missing and not unequal and len({step for _, step in both}) == STEPS
    text = f"{len(both)} losses, {len(missing)} on one side only, {unequal} unequal"
    return Finding("its losses are those of an undisturbed run", held, text)


def was_cheaper(e: MarketEvidence) -> Finding:
    spent = e.report["compute"]["cost_usd"]
    others = {line["policy"]: line["cost_usd"] for line in e.report.get("baselines", ())}
    held = all(name in others and spent < others[name] for name in ("OnDemandOnly", "UniformProgress"))
    told = ", ".join(f"{name} ${cost:.2f}" for name, cost in others.items()) or "no baseline"
    return Finding("cheaper than on-demand only and Uniform Progress", held, f"${spent:.2f}; {told}")


MARKET_CHECKS: tuple[Callable[[MarketEvidence], Finding], ...] = (
    finished_in_time,
    was_preempted,
    was_resized,
    on_demand_was_asked_for,
    trained_the_same,
    was_cheaper,
)
