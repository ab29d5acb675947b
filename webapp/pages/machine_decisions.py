"""Decisions about machines in words: what follows a yes, and what a no."""

from __future__ import annotations

from typing import Any

from jobs.models import Decision
from jobs.scheduler.no_answer import APPROVAL, COVER, OFFER, PATHS, STEADY, WAITS
from jobs.scheduler.planner import allocation_words
from jobs.scheduler.procurement import KINDS
from webapp import formats

EVIDENCE = {
    "steps_left": ("Steps left", "steps"),
    "time_left_s": ("Time to the deadline", ""),
    "last_safe_s": ("To the last safe moment", ""),
    "useful_for_s": ("An answer is of use for", ""),
    "chance": ("Chance with a yes", ""),
    "rule": ("What the plan rests on", ""),
    "policy": ("Policy that decided", ""),
    "policy_weight": ("Its weight with the selector", ""),
    "policy_windows": ("Replayed windows behind it", "windows"),
    "spot_available": ("Spot to be had", "machines"),
    "spot_usd_per_hour": ("Price of spot", "USD an hour"),
    "on_demand_usd_per_hour": ("Price of on-demand", "USD an hour"),
    "changeover_s": ("A changeover takes", ""),
    "spent_usd": ("Spent so far", "USD"),
    "waiting_usd_per_hour": ("Waiting costs", "USD an hour"),
    "priority": ("Its priority", "points"),
    "priority_for": ("That of the job that comes first", "points"),
    "needed": ("That job needs", "machines"),
    "frees": ("It gives up", "machines"),
    "unsaved_s": ("Since its last snapshot", ""),
    "ran_s": ("It has run without a change for", ""),
    "misses_deadline": ("It then misses its deadline", ""),
    "standby": ("Only when needed", ""),
}
WAITED_FOR = {APPROVAL: " until on-demand is approved", OFFER: " until there is a spot offer"}
SPANS = ("time_left_s", "last_safe_s", "useful_for_s", "changeover_s", "unsaved_s", "ran_s")


def is_about_machines(decision: Decision) -> bool:
    return decision.kind in KINDS


def follows_yes(decision: Decision, args: dict[str, Any]) -> str:
    """What is done, and where it is expected to lead."""
    spot, on_demand = int(args.get("spot", 0)), int(args.get("on_demand", 0))
    if up_to := args.get("up_to"):
        done = f"Nothing is bought now; up to {up_to} on-demand machines come without another question when the plan needs them"
    elif not spot + on_demand:
        done = "The trainer saves its state inside the step it is in and leaves, and its machines are given back"
    else:
        what = allocation_words(spot, on_demand)
        done = f"The job goes on with {what}: missing machines are bought, then the trainer changes over"
    cap = f", for ${float(args['max_usd']):,.2f} of on-demand at most" if "max_usd" in args else ""
    told = decision.evidence.get("if_yes") or {**decision.expected, "chance": decision.evidence.get("chance")}
    return f"{done}{cap}. {_leads_to(told)}".strip()


def follows_no(decision: Decision) -> str:
    """What is expected without it."""
    if decision.kind == "preempt_job":
        return (
            f"{decision.job.name} keeps its machines and is not asked again for a while; the other job goes on waiting."
        )
    if decision.kind != "switch_to_on_demand":
        return f"{decision.job.name} keeps the machines it has. The planner looks again in a few minutes."
    return _without_on_demand(decision.job.name, decision.evidence.get("if_no") or {}, decision.evidence)


def _without_on_demand(name: str, told: dict[str, Any], evidence: dict[str, Any]) -> str:
    """What the job does then, where that leads, and how that was found."""
    how, chance = told.get("how", PATHS), told.get("chance")
    what = allocation_words(int(told.get("spot", 0)), int(told.get("on_demand", 0)))
    again = "and is not asked again for a while."
    if how == STEADY:
        return f"{name} goes on with {what}, {again} {_leads_to(told)} That is by its pace, if it keeps them to the end.".strip()
    if how not in (COVER, WAITS):
        by = " Found along drawn paths of the spot market, without new on-demand." if told else ""
        return f"{name} goes on with the spot there is, {again} {_leads_to(told)}{by}".strip()
    waits = f"waits without machines{WAITED_FOR.get(told.get('waits_for', ''), ' until there is spot')}"
    if how == COVER:
        until = f"until what was approved is used up, in about {formats.span(told['lasts_s'])}"
        text = f"{name} goes on with {what} {until}, then {waits}."
    else:
        text = f"{name} {waits}, {again}"
    if chance is not None:
        return f"{text} {formats.percent(chance)} chance to make the deadline as long as nothing is bought."
    if evidence.get("time_left_s") is None:
        return f"{text} It has no deadline; what it costs and when it is done is open."
    return f"{text} How likely it then makes the deadline cannot be said."


def _leads_to(told: dict[str, Any] | None) -> str:
    if not told or "finish_s" not in told or "cost_usd" not in told:
        return ""
    cost, finish, chance = told["cost_usd"], told["finish_s"], told.get("chance")
    text = f"Done in {formats.span(finish['expected'])} (80 %: {formats.span(finish['low'])} to {formats.span(finish['high'])})"
    text += (
        f" for {formats.usd(cost['expected'])} more (80 %: {formats.usd(cost['low'])} to {formats.usd(cost['high'])})"
    )
    return text + (f"; {formats.percent(chance)} chance to make the deadline." if chance is not None else ".")
