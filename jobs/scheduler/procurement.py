"""From what is held and what is wished to proposals: which change, under which name, and whether it is worth its trouble.

A change that raises the number of on-demand machines beyond what an approval covers is proposed by itself (`switch_to_on_demand`),
so that it can be asked about; until there is an answer the job has what needs none: spot, and the on-demand that is covered.
Small to and fro is kept away: a minimum time between two changes, and at most so many in a dozen slots. What cannot wait (the
last safe moment, the budget, a machine taken away, the first start) passes both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from forecasting.outlook import Band, Outlook
from jobs.scheduler.planner import PlanFacts, Wish, allocation_words
from jobs.scheduler.proposal import Effect, Proposal

RULE = "planner"
MACHINES, ON_DEMAND = "machines", "on_demand"  # subjects: what may happen by rule, and what may have to be asked
KINDS = ("procure", "release", "switch_to_on_demand", "migrate", "idle")
ASK_AHEAD = 3  # looks of the planner, before a cover runs out
URGENT = ("guard", "budget", "late", "probe")


@dataclass(frozen=True)
class Standing:
    """What is in force: held, or ordered and under way. `covered`: on-demand machines that an approval pays for now."""

    spot: int = 0
    on_demand: int = 0
    offer: str = ""
    since_change_s: float = math.inf
    num_changes: int = 0  # within the window
    covered: int = 0
    covered_by: str = ""  # D-12
    covered_usd_left: float = 0.0
    is_urgent: bool = False  # something has happened that cannot wait for the hysteresis

    @property
    def size(self) -> int:
        return self.spot + self.on_demand


@dataclass(frozen=True)
class Settings:
    min_run_s: float = 300.0
    max_changes: int = 6  # within `window_s`
    window_s: float = 3600.0
    until_next_s: float = 600.0  # what is ordered now is paid at least until the planner looks again
    cap_margin: float = 1.3  # of the expected on-demand bill, as the cap that is asked for


def settings_for(slot_s: float, every_s: float) -> Settings:
    """Hysteresis in step with the planner's clock."""
    return Settings(min_run_s=slot_s, window_s=12 * slot_s, until_next_s=every_s + slot_s)


def limited(facts: PlanFacts, wish: Wish, *, machines_left: float, settings: Settings) -> tuple[Wish, str]:
    """The wish within the team's quota and the job's budget, and what keeps it small in words (empty if nothing does)."""
    size = min(wish.size, int(min(machines_left, 10**6)))
    why = ""
    if size < wish.size:
        why = "team quota"
        wish = _shrunk(facts, wish, size, "quota")
    if facts.budget_usd is None:
        return wish, why
    left = facts.budget_usd - facts.spent_usd - _saving_usd(facts)
    hours = settings.until_next_s / 3600
    while wish.size and facts.usd_per_hour(wish.spot, wish.on_demand) * hours > left:
        smaller = _shrunk(facts, wish, wish.size - 1, "budget")
        why = f"budget: ${facts.spent_usd:,.2f} of ${facts.budget_usd:,.2f} spent"
        wish = smaller
    return wish, why


def _saving_usd(facts: PlanFacts) -> float:
    """What the machines held cost while the trainer saves and leaves."""
    return facts.usd_per_hour(facts.held_spot, facts.held_on_demand) * facts.changeover_s / 3600


def _shrunk(facts: PlanFacts, wish: Wish, size: int, rule: str) -> Wish:
    """At most `size` machines, on-demand given up first; nothing where that is too few for the job."""
    if size < facts.n_min:
        return replace(wish, spot=0, on_demand=0, rule=rule, cost=None, finish=None, chance=None)
    spot = min(wish.spot, size)
    return replace(wish, spot=spot, on_demand=size - spot, rule=rule)


def with_less_spot(facts: PlanFacts, wish: Wish) -> Wish:
    """The wish when less spot is left than it counts on: on-demand in its place where that was urgent, else fewer machines."""
    here = facts.spot.available if facts.spot else 0
    if wish.spot <= here:
        return wish
    if wish.rule in URGENT and facts.policy == "prefer":
        return replace(wish, spot=here, on_demand=wish.size - here)
    return _shrunk(facts, replace(wish, spot=here), here + wish.on_demand, wish.rule)


def without_new_on_demand(facts: PlanFacts, wish: Wish, covered: int) -> Wish:
    """The wish with no more on-demand machines than are covered, filled up with the spot there is."""
    on_demand = min(wish.on_demand, covered)
    spot = min(facts.spot.available, facts.n_max - on_demand) if facts.spot and facts.policy != "never" else 0
    if spot + on_demand < facts.n_min:
        spot = on_demand = 0
    return replace(wish, spot=spot, on_demand=on_demand)


def needs_asking(facts: PlanFacts, wish: Wish, standing: Standing, settings: Settings) -> bool:
    """Whether the wish holds more on-demand than an approval covers, or that cover is about to run out."""
    if wish.on_demand > standing.covered:
        return True
    soon = facts.usd_per_hour(0, wish.on_demand) * ASK_AHEAD * settings.until_next_s / 3600
    return wish.on_demand > 0 and standing.covered_usd_left < soon


def machines_proposal(
    facts: PlanFacts, wish: Wish, standing: Standing, settings: Settings, why: str = ""
) -> Proposal | None:
    """The change that may happen by rule, or None: nothing changes, or it is not worth it yet."""
    offer = facts.spot.offer if facts.spot and wish.spot else ""
    moves = bool(offer and standing.spot and standing.offer and offer != standing.offer)
    if (wish.spot, wish.on_demand) == (standing.spot, standing.on_demand) and not moves:
        return None
    if not _may_change(wish, standing, settings):
        return None
    kind = _kind(wish, standing, moves)
    now, then = allocation_words(standing.spot, standing.on_demand), allocation_words(wish.spot, wish.on_demand)
    where = f" in {facts.spot.name}" if offer and facts.spot else ""
    covered = f" Covered by {standing.covered_by}." if wish.on_demand > standing.on_demand else ""
    sentence = f"Hold {then}{where} instead of {now}: {why or wish.sentence}{covered}"
    return _proposal(facts, wish, standing, kind, MACHINES, sentence, {**_args(wish, offer)})


def _may_change(wish: Wish, standing: Standing, settings: Settings) -> bool:
    """Hysteresis: nothing for a while after a change, and at most so many in the window."""
    if standing.is_urgent or wish.rule in URGENT or not standing.size:
        return True
    return standing.since_change_s >= settings.min_run_s and standing.num_changes < settings.max_changes


def _kind(wish: Wish, standing: Standing, moves: bool) -> str:
    if not wish.size:
        return "idle"
    if moves:
        return "migrate"
    return "release" if wish.size < standing.size else "procure"


def is_standby(wish: Wish, today: Wish) -> bool:
    """Whether the on-demand of a wish is not needed today, only the answer: later there would be no time to ask."""
    return wish.on_demand > 0 and today.on_demand == 0


def on_demand_proposal(
    facts: PlanFacts, wish: Wish, today: Wish, standing: Standing, settings: Settings, *, standby: bool = False
) -> Proposal:
    """Ask for on-demand machines up to a cap, with the end of its use and what waiting costs. `today`: what needs no answer.

    On standby nothing is bought yet: a yes covers `up_to` so many for when they are needed.
    """
    price = facts.on_demand_usd_per_hour or 0.0
    cap = _cap_usd(facts, wish, settings)
    useful_s = max(settings.until_next_s, wish.last_safe_s or 0.0)
    aim = today if standby else wish
    args = {**_args(aim, facts.spot.offer if facts.spot and aim.spot else ""), "max_usd": cap}
    if standby:
        args["up_to"] = wish.on_demand
    proposal = _proposal(
        facts, wish, standing, "switch_to_on_demand", ON_DEMAND, _ask_words(facts, wish, price, cap, standby), args
    )
    waiting = waiting_usd_per_hour(facts)
    evidence = {
        **proposal.evidence,
        "if_yes": _told(wish, cap),
        "useful_for_s": round(useful_s, 1),
        "waiting_usd_per_hour": round(waiting, 4),
        "standby": standby,
    }
    name = "up_to" if standby else "on_demand"
    least = 1 if standby else max(1, facts.n_min - wish.spot)
    return replace(
        proposal,
        evidence=evidence,
        price_usd=cap,
        usd_per_hour=wish.on_demand * price,
        waiting_usd_per_hour=waiting,
        expires_after_s=useful_s,
        allowed={
            name: {"min": least, "max": facts.n_max - (0 if standby else wish.spot), "integer": True},
            "max_usd": {"min": 0.01, "max": round(2 * cap, 2)},
        },
    )


def _cap_usd(facts: PlanFacts, wish: Wish, settings: Settings) -> float:
    """The on-demand bill to the end with a margin, within what the budget has left."""
    hours = (wish.finish.high if wish.finish else 4 * facts.changeover_s) / 3600
    cap = settings.cap_margin * facts.usd_per_hour(0, wish.on_demand) * hours
    if facts.budget_usd is not None:
        cap = min(cap, facts.budget_usd - facts.spent_usd - _saving_usd(facts))
    return round(max(0.01, cap), 2)


def _ask_words(facts: PlanFacts, wish: Wish, price: float, cap: float, standby: bool) -> str:
    spot = f"{facts.spot.available} spot to be had in {facts.spot.name}" if facts.spot else "no spot offer"
    left = f"{spot}, {facts.steps_left:,} steps left{_deadline_words(facts)}"
    if standby:
        return (
            f"Allow up to {wish.on_demand} on-demand at ${price:.2f} an hour each, ${cap:,.2f} at most, should spot fail: {left}; "
            "soon there would be no time to ask."
        )
    return f"Buy {wish.on_demand} on-demand at ${price:.2f} an hour each, until spot returns and ${cap:,.2f} at most: {left}."


def with_if_no(proposal: Proposal, wish: Wish, if_no: Outlook | None) -> Proposal:
    """The ask with what comes of a no: spot alone."""
    if if_no is None:
        return proposal
    return replace(
        proposal,
        evidence={**proposal.evidence, "if_no": outlook_told(if_no)},
        delta_cost_usd=_difference(wish.cost, if_no.cost),
        delta_eta_s=_difference(wish.finish, if_no.finish),
    )


def waiting_usd_per_hour(facts: PlanFacts) -> float:
    """What an hour without on-demand makes the rest dearer: less time means more machines, which do less each.

    Where the deadline cannot be met an hour later, the hour costs what a full-size hour does.
    """
    price = facts.on_demand_usd_per_hour
    if price is None or facts.speed is None or facts.time_left_s is None:
        return 0.0
    now, later = _cheapest_usd(facts, facts.time_left_s), _cheapest_usd(facts, facts.time_left_s - 3600)
    if now is None or later is None:
        return price * facts.n_max
    return max(0.0, later - now)


def _cheapest_usd(facts: PlanFacts, time_left_s: float) -> float | None:
    """The least that on-demand alone costs within a time, None if it cannot be done."""
    assert facts.speed is not None
    bills = []
    for size in range(facts.n_min, facts.n_max + 1):
        needed_s = facts.changeover_s + facts.steps_left * facts.speed.step_time_s(size)
        if needed_s <= time_left_s:
            bills.append(size * (facts.on_demand_usd_per_hour or 0.0) * needed_s / 3600)
    return min(bills, default=None)


def outlook_told(outlook: Outlook) -> dict[str, Any]:
    """An outlook whose times are seconds, for the card."""
    return {"cost_usd": _band(outlook.cost), "finish_s": _band(outlook.finish), "chance": outlook.chance}


def _difference(yes: Band | None, no: Band | None) -> Effect | None:
    """How much one outlook is above the other; the wider of both bands, as they share the market but not its use."""
    if yes is None or no is None:
        return None
    middle = yes.expected - no.expected
    half = max(yes.high - yes.low, no.high - no.low) / 2
    return Effect(middle, middle - half, middle + half)


def _told(wish: Wish, cap: float) -> dict[str, Any]:
    told: dict[str, Any] = {"cap_usd": cap, "chance": wish.chance}
    if wish.cost is not None and wish.finish is not None:
        told |= {"cost_usd": _band(wish.cost), "finish_s": _band(wish.finish)}
    return told


def _band(band: Band) -> dict[str, float]:
    return {"expected": round(band.expected, 4), "low": round(band.low, 4), "high": round(band.high, 4)}


def _args(wish: Wish, offer: str) -> dict[str, Any]:
    return {"spot": wish.spot, "on_demand": wish.on_demand, **({"offer": offer} if offer else {})}


def _proposal(
    facts: PlanFacts, wish: Wish, standing: Standing, kind: str, subject: str, sentence: str, args: dict[str, Any]
) -> Proposal:
    now, then = (facts.usd_per_hour(a.spot, a.on_demand) for a in (standing, wish))
    return Proposal(
        rule=RULE,
        kind=kind,
        subject=subject,
        direction="forward",
        sentence=sentence,
        args=args,
        evidence={
            "steps_left": facts.steps_left,
            "time_left_s": _rounded(facts.time_left_s),
            "last_safe_s": _rounded(wish.last_safe_s),
            "chance": wish.chance,
            "rule": wish.rule,
            "held": {"spot": standing.spot, "on_demand": standing.on_demand},
            "usd_per_hour": {"now": round(now, 4), "then": round(then, 4)},
            "spot_available": facts.spot.available if facts.spot else None,
            "spot_usd_per_hour": facts.spot.usd_per_hour if facts.spot else None,
            "on_demand_usd_per_hour": facts.on_demand_usd_per_hour,
            "changeover_s": round(facts.changeover_s, 1),
            "spent_usd": round(facts.spent_usd, 4),
        },
        confidence=wish.chance if wish.chance is not None else 0.5,
        price_usd=max(0.0, then - now) * (wish.finish.expected / 3600 if wish.finish else 1.0),
        expires_after_s=600.0,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _deadline_words(facts: PlanFacts) -> str:
    if facts.time_left_s is None:
        return ""
    hours = facts.time_left_s / 3600
    return (
        f", {hours:.1f} h to the deadline" if abs(hours) >= 2 else f", {facts.time_left_s / 60:.0f} min to the deadline"
    )
