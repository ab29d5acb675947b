"""From what is held and what is wished to proposals: which change, under which name, and whether it is worth its trouble.

A change that raises the number of on-demand machines beyond what an approval covers is proposed by itself (`switch_to_on_demand`),
so that it can be asked about; until there is an answer the job has what needs none: spot, and the on-demand that is covered.
Small to and fro is kept away: a minimum time between two changes, and at most so many in a dozen slots. What cannot wait (the
last safe moment, the budget, a machine taken away, the first start) passes both.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from forecasting.outlook import Band
from jobs.scheduler.planner import PlanFacts, Wish, allocation_words, uses_programme
from jobs.scheduler.proposal import Effect, Proposal

RULE = "planner"
MACHINES, ON_DEMAND = "machines", "on_demand"  # subjects: what may happen by rule, and what may have to be asked
ASK_KIND = "switch_to_on_demand"  # what is asked for on-demand that nothing covers
KINDS = ("procure", "release", ASK_KIND, "migrate", "idle", "preempt_job")
ASK_AHEAD = 3  # looks of the planner, before a cover runs out
DEADLINE = ("guard", "late")
HARD = ("budget", "probe")
URGENT = (*DEADLINE, *HARD)


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
    restarts: bool = False  # what is held runs a command that follows no orders: a change throws it back

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


def limited(
    facts: PlanFacts,
    wish: Wish,
    *,
    machines_left: float,
    settings: Settings,
    usd_left: float = math.inf,
    paid_s: float = 0.0,
) -> tuple[Wish, str]:
    """The wish within the team's quota and budget and the job's budget, and what keeps it small in words (empty if nothing does).

    `usd_left`: what the team's other jobs leave of its budget; it has to pay for every machine for `paid_s`, saving included.
    """
    size = min(wish.size, int(min(machines_left, 10**6)))
    why = ""
    if size < wish.size:
        why = "team quota"
        wish = _shrunk(facts, wish, size, "quota")
    while wish.size and facts.usd_per_hour(wish.spot, wish.on_demand) * paid_s / 3600 > usd_left:
        wish, why = _shrunk(facts, wish, wish.size - 1, "budget"), "team budget"
    if facts.budget_usd is None:
        return wish, why
    left = facts.budget_usd - facts.spent_usd - saving_usd(facts)
    hours = settings.until_next_s / 3600
    while wish.size and facts.usd_per_hour(wish.spot, wish.on_demand) * hours > left:
        smaller = _shrunk(facts, wish, wish.size - 1, "budget")
        why = f"budget: ${facts.spent_usd:,.2f} of ${facts.budget_usd:,.2f} spent"
        wish = smaller
    return wish, why


def saving_usd(facts: PlanFacts) -> float:
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
    ahead_s = min(ASK_AHEAD * settings.until_next_s, wish.finish.high if wish.finish else math.inf)
    return wish.on_demand > 0 and standing.covered_usd_left < facts.usd_per_hour(0, wish.on_demand) * ahead_s / 3600


def machines_proposal(
    facts: PlanFacts, wish: Wish, standing: Standing, settings: Settings, why: str = ""
) -> Proposal | None:
    """The change that may happen by rule, or None: nothing changes, or it is not worth it yet."""
    offer = facts.spot.offer if facts.spot and wish.spot else ""
    moves = bool(offer and standing.spot and standing.offer and offer != standing.offer)
    if (wish.spot, wish.on_demand) == (standing.spot, standing.on_demand) and not moves:
        return None
    if not _may_change(facts, wish, standing, settings):
        return None
    kind = _kind(wish, standing, moves)
    now, then = allocation_words(standing.spot, standing.on_demand), allocation_words(wish.spot, wish.on_demand)
    where = f" in {facts.spot.name}" if offer and facts.spot else ""
    covered = f" Covered by {standing.covered_by}." if wish.on_demand > standing.on_demand else ""
    sentence = f"Hold {then}{where} instead of {now}: {why or wish.sentence}{covered}"
    return proposal_of(facts, wish, standing, kind, MACHINES, sentence, {**allocation_args(wish, offer)})


def _may_change(facts: PlanFacts, wish: Wish, standing: Standing, settings: Settings) -> bool:
    """Hysteresis: nothing for a while after a change, at least two changeovers, and at most so many in the window."""
    if not standing.size or wish.rule in HARD:
        return True
    if _nearly_done(facts, standing) or _needed_again(facts, wish, standing, settings):
        return False
    if standing.is_urgent or _cannot_wait(wish, standing, settings):
        return True
    if standing.restarts:  # what it has done since a checkpoint of its own, of which nothing is known, would be lost
        return False
    return standing.since_change_s >= _rest_s(facts, settings) and standing.num_changes < settings.max_changes


def _rest_s(facts: PlanFacts, settings: Settings) -> float:
    """What a change has to last to be worth it."""
    return max(settings.min_run_s, 2 * facts.changeover_s)


def _cannot_wait(wish: Wish, standing: Standing, settings: Settings) -> bool:
    """More machines that the deadline needs: as the rule says, or as the last safe moment comes before the planner looks again."""
    if wish.rule in DEADLINE:
        return wish.on_demand > standing.on_demand or wish.size > standing.size
    soon = wish.last_safe_s is not None and wish.last_safe_s < settings.until_next_s
    return soon and wish.on_demand > standing.on_demand


def _nearly_done(facts: PlanFacts, standing: Standing) -> bool:
    """Whether the machines held end the job in time, and no later than two changeovers from now."""
    size = min(standing.size, facts.held)
    if facts.speed is None or not size:
        return False
    rest_s = facts.changeover_left_s + facts.steps_left * facts.speed.step_time_s(size)
    in_time = facts.time_left_s is None or rest_s * (1 + facts.margin) <= facts.time_left_s
    return rest_s <= 2 * facts.changeover_s and in_time


def _needed_again(facts: PlanFacts, wish: Wish, standing: Standing, settings: Settings) -> bool:
    """Whether on-demand that is still covered would have to be bought again before giving it up has paid: the move itself uses
    up some of the time that is left, and the planner has to see it come."""
    if wish.last_safe_s is None or not wish.on_demand < standing.on_demand <= standing.covered:
        return False
    return wish.last_safe_s - facts.changeover_s <= max(_rest_s(facts, settings), settings.until_next_s)


def _kind(wish: Wish, standing: Standing, moves: bool) -> str:
    if not wish.size:
        return "idle"
    if moves:
        return "migrate"
    return "release" if wish.size < standing.size else "procure"


def allocation_args(wish: Wish, offer: str) -> dict[str, Any]:
    return {"spot": wish.spot, "on_demand": wish.on_demand, **({"offer": offer} if offer else {})}


def proposal_of(
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
            **_policy_told(facts),
            "held": {"spot": standing.spot, "on_demand": standing.on_demand},
            "usd_per_hour": {"now": round(now, 4), "then": round(then, 4)},
            "spot_available": facts.spot.available if facts.spot else None,
            "spot_usd_per_hour": facts.spot.usd_per_hour if facts.spot else None,
            **({"forecasts": [asdict(use) for use in facts.forecasts]} if facts.forecasts else {}),
            "on_demand_usd_per_hour": facts.on_demand_usd_per_hour,
            "changeover_s": round(facts.changeover_s, 1),
            "spent_usd": round(facts.spent_usd, 4),
        },
        cost_usd=_effect(wish.cost),
        finish_s=_effect(wish.finish),
        confidence=wish.chance if wish.chance is not None else 0.5,
        price_usd=max(0.0, then - now) * (wish.finish.expected / 3600 if wish.finish else 1.0),
        expires_after_s=600.0,
    )


def _policy_told(facts: PlanFacts) -> dict[str, Any]:
    """Who decided, and of the selector's choice how sure it is."""
    if not uses_programme(facts):
        return {}
    followed = facts.followed
    told: dict[str, Any] = {"policy": followed.policy}
    if followed.weight is not None:
        told |= {"policy_weight": round(followed.weight, 4), "policy_windows": followed.num_windows}
    return told


def _effect(band: Band | None) -> Effect | None:
    """None also for an end that is not in sight."""
    if band is None or not all(map(math.isfinite, (band.expected, band.low, band.high))):
        return None
    return Effect(round(band.expected, 4), round(band.low, 4), round(band.high, 4))


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
