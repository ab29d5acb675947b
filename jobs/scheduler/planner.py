"""A planned job as the planner sees it (`PlanFacts`), and what it should hold now (`Wish`).

Pure: the epoch (`jobs/epoch.py`) reads the rows, `wishes` decides, `placing` and `procurement` turn the difference to what is held
into proposals. Quantities are machines, one worker each.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from forecasting.outlook import Band
from forecasting.policies.epoch import Pass
from forecasting.policies.registry import PROGRAMME
from forecasting.problem import Offer as Market
from jobs.scheduler.forecasts import ForecastUse
from jobs.scheduler.speed import Speed

SLOT_S = 300.0  # of a market that goes at the speed of the clock
MAX_SLOTS = 128  # a deadline far away is planned in longer slots
SELECTOR = "selector"  # what a job file names for the policy that has done best
MIN_MARGIN, MAX_MARGIN = 0.03, 0.15
COMMON = ("guard", "budget", "quota", "wait", "steady")  # rules that do not come from the policy


@dataclass(frozen=True)
class SpotQuote:
    """The spot offer that the job would use. `available`: machines this job could hold now, those it holds included."""

    offer: str  # public id
    name: str
    usd_per_hour: float
    available: int


@dataclass(frozen=True)
class Followed:
    """The policy that decides for a job. `asked`: what its file names, a policy or the selector.

    Of the selector: the weight of the policy, what the selector has lost so far against the best one (`regret`, utility scaled to 1
    per window), and from how many replayed windows that is known. None where nothing is.
    """

    policy: str = PROGRAMME
    asked: str = SELECTOR
    weight: float | None = None
    regret: float | None = None
    num_windows: int = 0

    @property
    def words(self) -> str:
        """Who decides, for a person."""
        if self.asked != SELECTOR:
            return f"{self.policy}, as its file asks"
        if self.weight is None:
            return f"{self.policy}: the selector has not seen enough of this market yet"
        return f"{self.policy}, the selector's choice with {self.weight:.0%} of the weight after {self.num_windows} windows"


@dataclass(frozen=True)
class PlanFacts:
    """A job as the planner sees it. Times in seconds from now, money in USD."""

    policy: str  # prefer, only, never
    steps_left: int
    time_left_s: float | None
    n_min: int
    n_max: int
    speed: Speed | None
    spread: float
    changeover_s: float
    held_spot: int = 0
    held_on_demand: int = 0
    changeover_left_s: float = 0.0  # until what is held trains
    spot: SpotQuote | None = None
    on_demand_usd_per_hour: float | None = None
    spent_usd: float = 0.0
    budget_usd: float | None = None
    approval_s: float = 0.0  # what an approval of on-demand may take; 0 where a rule gives it
    allowed: str = ""  # which offers the job file allows, in words; empty: all
    refused: str = ""  # the spot offer that it would use had it not been refused lately, and how often, in words
    followed: Followed = Followed()
    begun_s: float = 0.0  # since it could first be planned: where the even line to the deadline starts
    steps_done: int = 0  # since then
    forecasts: tuple[ForecastUse, ...] = ()  # of the slots ahead, as far as the policy asks for them

    @property
    def held(self) -> int:
        return self.held_spot + self.held_on_demand

    @property
    def margin(self) -> float:
        """Share of the time left that is kept in hand, as the pace is not known exactly."""
        return min(MAX_MARGIN, max(MIN_MARGIN, self.spread))

    @property
    def late_s(self) -> float:
        """Seconds that on-demand at full size needs from a cold start."""
        assert self.speed is not None
        return self.changeover_s + self.steps_left * self.speed.step_time_s(self.n_max)

    def as_json(self) -> dict[str, Any]:
        """Everything, as stored with a decision: enough to ask again."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> PlanFacts:
        """The facts as they were stored with a decision."""
        parts: dict[str, Any] = {"followed": Followed(**stored["followed"])}
        if stored["speed"]:
            parts["speed"] = Speed(**stored["speed"])
        if stored["spot"]:
            parts["spot"] = SpotQuote(**stored["spot"])
        parts["forecasts"] = tuple(ForecastUse(**use) for use in stored.get("forecasts", ()))
        return cls(**{**stored, **parts})

    def usd_per_hour(self, spot: int, on_demand: int) -> float:
        price = self.spot.usd_per_hour if self.spot else 0.0
        return spot * price + on_demand * (self.on_demand_usd_per_hour or 0.0)


@dataclass(frozen=True)
class Wish:
    """What to hold now. `cost` is USD still to come, `finish` seconds from now; None where no pace is known."""

    spot: int
    on_demand: int
    rule: str
    sentence: str
    cost: Band | None = None
    finish: Band | None = None
    chance: float | None = None
    last_safe_s: float | None = None  # until when on-demand has to be asked for; negative if that has passed
    outlook_of: str = (
        ""  # the policy along which cost, finish and chance were found, or `steady` where it is taken to stay
    )
    made_for: Pass = field(default_factory=Pass)

    @property
    def size(self) -> int:
        return self.spot + self.on_demand


@dataclass
class Markets:
    """Past of the offers by (public id, slot length): the same array for every job, so that they share a pass."""

    slot_s: float
    past: dict[tuple[str, float], Market] = field(default_factory=dict)

    @property
    def pace(self) -> float:
        """Seconds of the market in a second: shorter slots than usual are those of a market in fast motion, learnt alike."""
        return max(1.0, SLOT_S / self.slot_s)

    def past_of(self, facts: PlanFacts) -> Market | None:
        """The past that a job is planned with, None where it needs none."""
        if facts.spot is None or facts.time_left_s is None:
            return None
        return self.past.get((facts.spot.offer, slot_of(facts.time_left_s, self.slot_s)))


def slot_of(time_left_s: float, slot_s: float) -> float:
    """The slot length for a deadline: `slot_s`, doubled until at most `MAX_SLOTS` are left."""
    while time_left_s / slot_s > MAX_SLOTS:
        slot_s *= 2
    return slot_s


def last_safe_s(facts: PlanFacts) -> float | None:
    """Seconds until on-demand at full size has to be ordered to make the deadline without any spot."""
    if facts.time_left_s is None or facts.speed is None:
        return None
    return facts.time_left_s * (1 - facts.margin) - facts.late_s


def uses_programme(facts: PlanFacts) -> bool:
    """Whether the job is planned by the programme: a deadline ahead, a pace, spot wanted and offered, on-demand to fall back on."""
    return (
        facts.policy == "prefer"
        and facts.speed is not None
        and facts.time_left_s is not None
        and facts.time_left_s > 0
        and facts.steps_left > 0
        and facts.spot is not None
        and facts.on_demand_usd_per_hour is not None
        and facts.on_demand_usd_per_hour > 0
    )


def sentence_of(facts: PlanFacts, wish: Wish) -> str:
    """Why, with the numbers, for a person."""
    spot = facts.spot
    market = f"{spot.available} spot in {spot.name} at ${spot.usd_per_hour:.2f} an hour" if spot else "no spot offer"
    market += f" {facts.allowed}" if facts.allowed and not spot else ""
    market += f" ({facts.refused})" if facts.refused else ""
    words = {
        "programme": "is the least expected cost",
        "guard": "is needed now: the last safe moment for on-demand has come",
        "budget": "is what the budget pays",
        "spot": "is all the spot there is",
        "idle": "until spot comes",
        "on_demand": "to the end, whatever spot costs",
        "catch_up": "reaches the even line to the deadline",
        "keep": "as a change now would cost a changeover",
        "ahead": "needs no growth: it is ahead of the even line",
        "band": "is all the spot there is, near the even line",
        "behind": "fills up with on-demand: it is behind the even line",
        "committed_horizon": "is the mean of the last plans over the slots ahead",
        "forecast_error": "without forecasts, whose error is high",
        "late": "after the deadline",
        "wait": "until spot is to be had",
        "steady": "to the end",
    }
    what = allocation_words(wish.spot, wish.on_demand)
    whose = "" if facts.followed.policy == PROGRAMME or wish.rule in COMMON else f" ({facts.followed.policy})"
    text = f"{what} {words.get(wish.rule, wish.rule)}{whose}; {market}"
    if wish.cost is not None and wish.finish is not None:
        text += f", ${wish.cost.expected:,.2f} (80 %: {wish.cost.low:,.2f} to {wish.cost.high:,.2f}) still to come"
    if wish.chance is not None:
        text += f", {wish.chance:.0%} to make the deadline"
    return text + "."


def allocation_words(spot: int, on_demand: int) -> str:
    """'2 spot and 1 on-demand', 'nothing'."""
    parts = [f"{spot} spot"] * bool(spot) + [f"{on_demand} on-demand"] * bool(on_demand)
    return " and ".join(parts) or "nothing"
