"""What a planned job should hold now: from its facts to a wish, by the programme where there is a deadline and spot to be had.

Pure: the epoch (`jobs/epoch.py`) reads the rows, this decides, `procurement` turns the difference to what is held into proposals.
Quantities are machines, one worker each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from forecasting.outlook import Band, Outlook
from forecasting.policies.epoch import plan_many
from forecasting.problem import Allocation, Situation
from forecasting.problem import Job as Task
from forecasting.problem import Offer as Market
from jobs.scheduler.speed import Speed

MAX_SLOTS = 128  # a deadline far away is planned in longer slots
CHANGEOVER_STEP = 1.3  # changeovers are told apart by this factor, so that jobs alike share a pass
ASK_SHARE = 0.1  # at most so much of the time left is kept for an approval
NUM_PATHS = 32
MAX_SIZES = 8
MIN_MARGIN, MAX_MARGIN = 0.03, 0.15


@dataclass(frozen=True)
class SpotQuote:
    """The spot offer that the job would use. `available`: machines this job could hold now, those it holds included."""

    offer: str  # public id
    name: str
    usd_per_hour: float
    available: int


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
    spot: SpotQuote | None = None
    on_demand_usd_per_hour: float | None = None
    spent_usd: float = 0.0
    budget_usd: float | None = None
    approval_s: float = 0.0  # what an approval of on-demand may take; 0 where a rule gives it

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

    @property
    def size(self) -> int:
        return self.spot + self.on_demand


@dataclass
class Markets:
    """Past of the offers by (public id, slot length): the same array for every job, so that they share a pass."""

    slot_s: float
    past: dict[tuple[str, float], Market] = field(default_factory=dict)


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


def wishes(jobs: Sequence[PlanFacts], markets: Markets, clock_s: float) -> list[tuple[Wish, Wish]]:
    """(wish, the same if on-demand could be had without asking) per job, in the order given.

    The jobs of one shape share a backward pass. The two differ where only the time for an answer is running out.
    """
    places = [i for i, facts in enumerate(jobs) if uses_programme(facts)]
    found = {i: (wish, wish) for i, facts in enumerate(jobs) if i not in set(places) for wish in [plain_wish(facts)]}
    planned = plan_many(
        [situation_of(jobs[i], markets, clock_s) for i in places],
        spreads=[jobs[i].spread for i in places],
        deadlines=[deadline_slots(jobs[i], markets) for i in places],
        num_paths=NUM_PATHS,
    )
    for i, plan in zip(places, planned, strict=True):
        slot_s = slot_of(jobs[i].time_left_s or 0.0, markets.slot_s)
        wish, unasked = (_wish(jobs[i], a, plan.outlook, slot_s) for a in (plan.allocation, plan.unasked))
        found[i] = (wish, unasked)
    return [found[i] for i in range(len(jobs))]


def deadline_slots(facts: PlanFacts, markets: Markets) -> float:
    """The deadline itself, nothing kept in hand, in slots from now."""
    left_s = facts.time_left_s or 0.0
    return left_s / slot_of(left_s, markets.slot_s)


def situation_of(facts: PlanFacts, markets: Markets, clock_s: float) -> Situation:
    """The forecasting library's view of a job: slots, machines, USD per machine and slot."""
    assert facts.speed is not None
    assert facts.spot is not None
    assert facts.on_demand_usd_per_hour is not None
    assert facts.time_left_s is not None
    slot_s = slot_of(facts.time_left_s, markets.slot_s)
    slots = max(1, math.floor(facts.time_left_s * (1 - facts.margin) / slot_s))
    work = max(1e-6, facts.steps_left * facts.speed.step_time_1_s / slot_s)
    on_demand = facts.on_demand_usd_per_hour * slot_s / 3600
    waits = min(facts.approval_s, ASK_SHARE * facts.time_left_s)
    task = Task(
        work=work,
        deadline_slots=slots,
        value=2 * work * on_demand,
        on_demand_price=on_demand,
        n_min=facts.n_min,
        n_max=facts.n_max,
        allowed_sizes=sizes_told_apart(facts.n_min, facts.n_max),
        throughput=facts.speed.curve(facts.n_max),
        changeover_s=_stepped(facts.changeover_s),
        slot_s=slot_s,
        approval_slots=math.ceil(waits / slot_s) if facts.held_on_demand == 0 else 0,
    )
    market = markets.past[(facts.spot.offer, slot_s)]
    return Situation(
        task,
        0,
        work,
        (market,),
        held_spot=facts.held_spot,
        held_on_demand=facts.held_on_demand,
        clock_s=clock_s,
        spot_here=facts.spot.available,
    )


def sizes_told_apart(low: int, high: int) -> tuple[int, ...] | None:
    """All sizes (None) up to `MAX_SIZES`; of more an even choice by ratio, so that a plan stays small."""
    if high - low < MAX_SIZES:
        return None
    ratio = (high / low) ** (1 / (MAX_SIZES - 1))
    return tuple(sorted({round(low * ratio**i) for i in range(MAX_SIZES)}))


def _stepped(seconds: float) -> float:
    if seconds <= 1:
        return max(0.0, seconds)
    return float(CHANGEOVER_STEP ** math.ceil(math.log(seconds, CHANGEOVER_STEP) - 1e-9))


def _wish(facts: PlanFacts, a: Allocation, outlook: Outlook, slot_s: float) -> Wish:
    finish = outlook.finish.scaled(slot_s)
    wish = Wish(a.n_spot, a.n_on_demand, a.reason.rule, "", outlook.cost, finish, outlook.chance, last_safe_s(facts))
    return replace(wish, sentence=sentence_of(facts, wish))


def plain_wish(facts: PlanFacts) -> Wish:
    """Where the programme has nothing to work with: no pace yet, no deadline, or only one kind of machine."""
    here = _floor(facts, facts.spot.available) if facts.spot and facts.policy != "never" else 0
    if facts.speed is None:
        return _probe(facts, here)
    size = _steady_size(facts)
    late = facts.time_left_s is not None and facts.time_left_s <= 0
    buys = facts.policy != "only" and facts.on_demand_usd_per_hour is not None
    if facts.policy == "never" or (facts.spot is None and buys):
        return _steady(facts, 0, size if buys else 0)
    if late and not here and buys:
        return _steady(facts, 0, facts.n_max)
    return _steady(facts, here if late else min(here, size), 0)


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


def _steady(facts: PlanFacts, spot: int, on_demand: int) -> Wish:
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


def sentence_of(facts: PlanFacts, wish: Wish) -> str:
    """Why, with the numbers, for a person."""
    spot = facts.spot
    market = f"{spot.available} spot in {spot.name} at ${spot.usd_per_hour:.2f} an hour" if spot else "no spot offer"
    words = {
        "programme": "is the least expected cost",
        "guard": "is needed now: the last safe moment for on-demand has come",
        "budget": "is what the budget pays",
        "late": "after the deadline",
        "wait": "until spot is to be had",
        "steady": "to the end",
    }
    what = allocation_words(wish.spot, wish.on_demand)
    text = f"{what} {words.get(wish.rule, wish.rule)}; {market}"
    if wish.cost is not None and wish.finish is not None:
        text += f", ${wish.cost.expected:,.2f} (80 %: {wish.cost.low:,.2f} to {wish.cost.high:,.2f}) still to come"
    if wish.chance is not None:
        text += f", {wish.chance:.0%} to make the deadline"
    return text + "."


def allocation_words(spot: int, on_demand: int) -> str:
    """'2 spot and 1 on-demand', 'nothing'."""
    parts = [f"{spot} spot"] * bool(spot) + [f"{on_demand} on-demand"] * bool(on_demand)
    return " and ".join(parts) or "nothing"
