"""What comes of a no to on-demand: along drawn paths of the market where there is spot to plan with, else by what is left. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from forecasting.outlook import Band, Outlook
from jobs.scheduler.plain import steady_wish
from jobs.scheduler.planner import PlanFacts, Wish
from jobs.scheduler.procurement import Standing

# How it was found: paths of the spot market, the pace of what it keeps, what an earlier approval still pays; or it keeps nothing.
PATHS, STEADY, COVER, WAITS = "paths", "steady", "cover", "waits"
APPROVAL, OFFER, SPOT = "approval", "offer", "spot"  # what it then waits for


@dataclass(frozen=True)
class IfNo:
    """An outcome without what is asked. `spot`, `on_demand`: what it keeps; None: not known, or no end is in sight.

    `chance`: to make the deadline for as long as nothing else is approved; `lasts_s`: until what was approved before is used up.
    """

    how: str
    spot: int = 0
    on_demand: int = 0
    waits_for: str = ""
    cost: Band | None = None
    finish: Band | None = None
    chance: float | None = None
    lasts_s: float | None = None


def if_no_of(facts: PlanFacts, today: Wish, standing: Standing, paths: Outlook | None) -> IfNo:
    """`today`: what needs no answer. `paths`: spot alone along drawn paths, where the job is planned by the programme."""
    if paths is not None:
        return IfNo(PATHS, today.spot, today.on_demand, "", paths.cost, paths.finish, paths.chance)
    if not today.size:
        return IfNo(WAITS, waits_for=_waits_for(facts), chance=_chance_without(facts))
    stays = steady_wish(facts, today.spot, today.on_demand) if facts.speed is not None else None
    lasts_s = _lasts_s(facts, today, standing)
    if lasts_s < (stays.finish.expected if stays is not None and stays.finish is not None else math.inf):
        return IfNo(
            COVER, today.spot, today.on_demand, _waits_for(facts), chance=_chance_without(facts), lasts_s=lasts_s
        )
    if stays is None:
        return IfNo(STEADY, today.spot, today.on_demand)
    return IfNo(STEADY, today.spot, today.on_demand, "", stays.cost, stays.finish, stays.chance)


def _lasts_s(facts: PlanFacts, today: Wish, standing: Standing) -> float:
    """How long what is left of an approval pays for the on-demand that is kept."""
    usd_per_hour = facts.usd_per_hour(0, today.on_demand)
    return 3600 * max(0.0, standing.covered_usd_left) / usd_per_hour if usd_per_hour else math.inf


def _waits_for(facts: PlanFacts) -> str:
    if facts.policy == "never":
        return APPROVAL
    return OFFER if facts.spot is None else SPOT


def _chance_without(facts: PlanFacts) -> float | None:
    """Of a job that nothing trains: none where no machine can come, or the deadline has passed; else nobody knows."""
    if facts.time_left_s is None:
        return None
    return 0.0 if facts.time_left_s <= 0 or _waits_for(facts) != SPOT else None


def told(one: IfNo) -> dict[str, Any]:
    """As stored with the decision, times in seconds."""
    kept: dict[str, Any] = {"how": one.how, "spot": one.spot, "on_demand": one.on_demand, "chance": one.chance}
    if one.waits_for:
        kept["waits_for"] = one.waits_for
    if one.lasts_s is not None:
        kept["lasts_s"] = round(one.lasts_s, 1)
    for name, band in (("cost_usd", one.cost), ("finish_s", one.finish)):
        if band is not None:
            kept[name] = {
                "expected": round(band.expected, 4), "low": round(band.low, 4), "high": round(band.high, 4),
            }  # fmt: skip
    return kept
