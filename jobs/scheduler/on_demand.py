"""Asking for on-demand machines: the sentence, the cap, both outcomes, the end of its use and the price of waiting. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forecasting.outlook import Band
from jobs.scheduler import no_answer
from jobs.scheduler.no_answer import IfNo
from jobs.scheduler.planner import PlanFacts, Wish
from jobs.scheduler.procurement import ASK_KIND, ON_DEMAND, Settings, Standing, allocation_args, proposal_of, saving_usd
from jobs.scheduler.proposal import Effect, Proposal

# By how much what a standing ask was made of may change before it is asked anew. Dearer weighs more than cheaper, sooner more than
# later, so that a price or a pace that goes to and fro settles on one card: the one with the highest price, and the first end.
DEARER, CHEAPER = 0.05, 0.2  # of the price that was asked about
SOONER = 0.02  # of the time that it is still open


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
    args = {**allocation_args(aim, facts.spot.offer if facts.spot and aim.spot else ""), "max_usd": cap}
    if standby:
        args["up_to"] = wish.on_demand
    proposal = proposal_of(
        facts, wish, standing, ASK_KIND, ON_DEMAND, _ask_words(facts, wish, price, cap, standby), args
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


def is_dearer(asked_usd: float, usd: float) -> bool:
    """Whether a price is so far above the one asked about that a yes to that one does not count for it."""
    return usd > asked_usd * (1 + DEARER)


def price_words(asked_usd: float, usd: float) -> str:
    """How the price has moved since it was asked about; empty where it has not moved by enough to ask anew."""
    if is_dearer(asked_usd, usd) or usd < asked_usd * (1 - CHEAPER):
        return f"on-demand costs ${usd:.2f} an hour each now, not ${asked_usd:.2f}"
    return ""


def outdated_words(asked_usd: float | None, left_s: float, anew: Proposal) -> str:
    """Why a standing ask, with its price and the seconds until it expires, gives way to the same asked now; empty: it stands."""
    usd = anew.evidence["on_demand_usd_per_hour"]
    if asked_usd and usd is not None and (words := price_words(asked_usd, usd)):
        return words
    if anew.expires_after_s < left_s * (1 - SOONER):
        return f"an answer is of use for {anew.expires_after_s / 60:.0f} min only, not for {left_s / 60:.0f}"
    return ""


def _cap_usd(facts: PlanFacts, wish: Wish, settings: Settings) -> float:
    """The on-demand bill to the end with a margin, within what the budget has left."""
    used_s = max(wish.finish.high if wish.finish else 4 * facts.changeover_s, 2 * settings.until_next_s)
    cap = settings.cap_margin * facts.usd_per_hour(0, wish.on_demand) * used_s / 3600
    if facts.budget_usd is not None:
        cap = min(cap, facts.budget_usd - facts.spent_usd - saving_usd(facts))
    return round(max(0.01, cap), 2)


def _ask_words(facts: PlanFacts, wish: Wish, price: float, cap: float, standby: bool) -> str:
    spot = f"{facts.spot.available} spot to be had in {facts.spot.name}" if facts.spot else "no spot offer"
    until = "until spot returns" if facts.spot else "until there is spot"
    if facts.policy == "never":
        spot, until = "its file asks for on-demand alone", "to the end"
    left = f"{spot}, {facts.steps_left:,} steps left{_deadline_words(facts)}"
    if standby:
        return (
            f"Allow up to {wish.on_demand} on-demand at ${price:.2f} an hour each, ${cap:,.2f} at most, should spot fail: {left}; "
            "soon there would be no time to ask."
        )
    return f"Buy {wish.on_demand} on-demand at ${price:.2f} an hour each, {until} and ${cap:,.2f} at most: {left}."


def with_if_no(proposal: Proposal, wish: Wish, if_no: IfNo) -> Proposal:
    """The ask with what comes of a no, and how far a yes is from it where both end."""
    return replace(
        proposal,
        evidence={**proposal.evidence, "if_no": no_answer.told(if_no)},
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


def _deadline_words(facts: PlanFacts) -> str:
    if facts.time_left_s is None:
        return ""
    hours = facts.time_left_s / 3600
    return (
        f", {hours:.1f} h to the deadline" if abs(hours) >= 2 else f", {facts.time_left_s / 60:.0f} min to the deadline"
    )
