"""What to hold where no policy has anything to work with: no pace yet, no deadline, or one kind of machine. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from forecasting.outlook import Band
from jobs.scheduler.planner import PlanFacts, Wish, last_safe_s, sentence_of


def plain_wish(facts: PlanFacts) -> Wish:
    """Where the programme has nothing to work with: no pace yet, no deadline, or only one kind of machine."""
    here = _floor(facts, facts.spot.available) if facts.spot and facts.policy != "never" else 0
    if facts.speed is None:
        return _probe(facts, here)
    size = _steady_size(facts)
    late = facts.time_left_s is not None and facts.time_left_s <= 0
    buys = facts.policy != "only" and facts.on_demand_usd_per_hour is not None
    if facts.policy == "never" or (facts.spot is None and buys):
        return steady_wish(facts, 0, size if buys else 0)
    if late and not here and buys:
        return steady_wish(facts, 0, facts.n_max)
    return steady_wish(facts, here if late else min(here, size), 0)


def _probe(facts: PlanFacts, here: int) -> Wish:
    """No pace is known: the smallest start that shows one, on spot if there is any."""
    if here:
        return Wish(here, 0, "probe", "No pace is known yet; it starts on the spot there is, which will show one.")
    if facts.policy == "only" or facts.on_demand_usd_per_hour is None or (
        facts.policy == "prefer" and facts.time_left_s is None
    ):  # fmt: skip
        return Wish(0, 0, "wait", "No pace is known yet and no spot is to be had; it waits for spot.")
    why = "No pace is known yet and no spot is to be had; the fewest on-demand machines show whether the deadline can be met."
    if facts.policy == "never":
        return Wish(0, facts.n_max, "probe", "No pace is known yet; it starts on demand, as its file asks.")
    return Wish(0, facts.n_min, "probe", why)


def _steady_size(facts: PlanFacts) -> int:
    """The fewest machines that make the deadline with a tenth in hand; without a deadline the fewest, which cost least."""
    assert facts.speed is not None
    if facts.time_left_s is None:
        return facts.n_min
    for size in range(facts.n_min, facts.n_max + 1):
        start_s = 0.0 if size <= facts.held else facts.changeover_s
        if start_s + facts.steps_left * facts.speed.step_time_s(size) <= 0.9 * facts.time_left_s:
            return size
    return facts.n_max


def steady_wish(facts: PlanFacts, spot: int, on_demand: int) -> Wish:
    """A wish that stays as it is to the end, with what that comes to."""
    assert facts.speed is not None
    size = spot + on_demand
    if not size:
        wish = Wish(0, 0, "wait", "", last_safe_s=last_safe_s(facts))
        return replace(wish, sentence=sentence_of(facts, wish))
    needed_s = facts.steps_left * facts.speed.step_time_s(size) + (facts.changeover_s if size > facts.held else 0.0)
    low, high = needed_s * (1 - 1.3 * facts.spread), needed_s * (1 + 1.3 * facts.spread)
    rate = facts.usd_per_hour(spot, on_demand) / 3600
    chance = None
    if facts.time_left_s is not None:
        over = (facts.time_left_s / needed_s - 1) / max(facts.spread, 1e-3) if needed_s else 9.0
        chance = 0.5 * (1 + math.erf(over / math.sqrt(2)))
    wish = Wish(
        spot, on_demand, "steady", "", Band(rate * needed_s, rate * low, rate * high), Band(needed_s, low, high), chance,
        last_safe_s(facts),
    )  # fmt: skip
    return replace(wish, sentence=sentence_of(facts, wish))


def _floor(facts: PlanFacts, machines: int) -> int:
    """The largest allowed size that so many machines make, 0 if none."""
    return min(machines, facts.n_max) if machines >= facts.n_min else 0
