"""What of a wish can be had: the spot that earlier jobs left, the team's quota, the budget, what needs an answer first. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from forecasting.outlook import Outlook
from jobs.scheduler import procurement
from jobs.scheduler.no_answer import if_no_of
from jobs.scheduler.on_demand import is_standby, on_demand_proposal, with_if_no
from jobs.scheduler.planner import PlanFacts, Wish
from jobs.scheduler.procurement import Settings, Standing
from jobs.scheduler.proposal import Proposal


@dataclass(frozen=True)
class Ask:
    """On-demand that has to be asked for. `standby`: not to be bought yet, but there would be no time to ask later."""

    wish: Wish
    standby: bool = False


@dataclass(frozen=True)
class Frame:
    """What an epoch leaves to a job. None: no limit."""

    standing: Standing
    limits: Settings
    spot_left: int | None = None  # of the offer that the facts name, what it holds included
    machines_left: int | None = None  # of the team's quota
    quota: str = ""  # the quota in words, where it is what keeps the wish small
    usd_left: float | None = None  # of the team's budget
    paid_s: float = 0.0  # for how long that has to pay for a machine
    money: str = ""  # the team's budget in words

    def as_json(self) -> dict[str, Any]:
        stored = asdict(self)
        if self.standing.since_change_s == float("inf"):
            stored["standing"]["since_change_s"] = None
        return stored

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Frame:
        standing = dict(stored["standing"])
        if standing["since_change_s"] is None:
            standing["since_change_s"] = float("inf")
        return cls(**{**stored, "standing": Standing(**standing), "limits": Settings(**stored["limits"])})


@dataclass(frozen=True)
class Placed:
    """A wish within its frame. `today`: of that, what needs no answer; `held_back`: what keeps it small, in words."""

    facts: PlanFacts
    wish: Wish
    today: Wish
    ask: Ask | None = None
    held_back: str = ""


def placed(facts: PlanFacts, wish: Wish, today: Wish, frame: Frame) -> Placed:
    """The wish within the spot that is left, the quota and the budget, and what of it has to be asked for."""
    if facts.spot is not None and frame.spot_left is not None and frame.spot_left < facts.spot.available:
        facts = replace(facts, spot=replace(facts.spot, available=frame.spot_left))
        wish, today = (procurement.with_less_spot(facts, one) for one in (wish, today))
    (wish, held_back), (today, _) = (_limited(facts, one, frame) for one in (wish, today))
    ask = None
    if procurement.needs_asking(facts, wish, frame.standing, frame.limits):
        ask = Ask(wish, standby=is_standby(wish, today))
        if not ask.standby:
            today = wish
        today, _ = _limited(facts, procurement.without_new_on_demand(facts, today, frame.standing.covered), frame)
    return Placed(facts, wish, today, ask, held_back)


def _limited(facts: PlanFacts, wish: Wish, frame: Frame) -> tuple[Wish, str]:
    left = float("inf") if frame.machines_left is None else frame.machines_left
    usd_left = float("inf") if frame.usd_left is None else frame.usd_left
    wish, why = procurement.limited(
        facts, wish, machines_left=left, settings=frame.limits, usd_left=usd_left, paid_s=frame.paid_s
    )
    return wish, {"team quota": frame.quota, "team budget": frame.money}.get(why, why)


def change_proposal(one: Placed, frame: Frame) -> Proposal | None:
    """The change that needs no answer, or None where nothing changes."""
    why = one.held_back
    if one.ask is not None and not one.ask.standby:
        why = why or "it goes on with what needs no approval."
    return procurement.machines_proposal(one.facts, one.today, frame.standing, frame.limits, why)


def ask_proposal(one: Placed, frame: Frame, paths: Outlook | None) -> Proposal | None:
    """What a person is asked, or None where nothing is. `paths`: spot alone along drawn paths of the market, where it has some."""
    if one.ask is None:
        return None
    proposal = on_demand_proposal(
        one.facts, one.ask.wish, one.today, frame.standing, frame.limits, standby=one.ask.standby
    )
    return with_if_no(proposal, one.ask.wish, if_no_of(one.facts, one.today, frame.standing, paths))
