"""Whose machines go to a job that comes first: the holders that lose the fewest dollars. Pure.

What a holder loses is worked out from its checkpoint: the machines that are idle while its trainer saves and leaves (a changeover)
and, where none are left to it, once more while it comes back; plus the work since its last snapshot, for the case that the save
fails. A holder is out of the question where it

* is not at least `MARGIN` points behind, or is within 2 % of its goal (`Contender.is_protected`);
* has no snapshot to fall back on, or a trainer that cannot save on leaving;
* has run for less than the minimum run time, is under another order, or has given way already in the window.

One that would make its deadline with its machines and not without is taken after all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from jobs.scheduler.procurement import RULE
from jobs.scheduler.proposal import Effect, Proposal

KIND, SUBJECT = "preempt_job", "room"
MARGIN = 2.0  # points
WINDOW_SLOTS = 12  # of the planner: within it a job makes room once, and a no holds
UNKNOWN_S = 3600.0  # what a job is taken to need whose pace is not known
SAVE_FAILS = 0.05  # share of saves that is reckoned to fail: then the work since the last snapshot is lost


@dataclass(frozen=True)
class Holder:
    """A job that holds machines which another one could use. Machines have one GPU each; times in seconds, money in USD."""

    key: int
    name: str
    effective: float
    held: int  # machines that count: of the team, or of the spot offer in question
    n_min: int
    usd_per_hour: float  # of one machine
    changeover_s: float
    unsaved_s: float | None  # since its last snapshot; None: it has none
    runs_s: float
    min_run_s: float
    can_save: bool = True
    is_protected: bool = False
    is_moving: bool = False  # another order is under way
    gave_way: bool = False  # in the window, or a person said no to it
    slack_s: float | None = None  # to its deadline with what it holds; None where it has none or misses it anyway

    def may_give_way(self, to_effective: float) -> bool:
        return (
            self.held > 0
            and to_effective - self.effective >= MARGIN
            and not (self.is_protected or self.is_moving or self.gave_way)
            and self.can_save
            and self.unsaved_s is not None
            and self.runs_s >= self.min_run_s
        )

    def keeps(self, needed: int) -> int:
        """Machines that stay with it when `needed` are wanted: as many as possible, or none where that is fewer than it can use."""
        left = self.held - needed
        return left if left >= self.n_min else 0

    def lost_usd(self, keeps: int) -> float:
        """What giving machines up costs: time without progress and, at the odds, work that has to be done again."""
        assert self.unsaved_s is not None
        idle_s = self.changeover_s * (self.held if keeps else 2 * self.held)
        return self.usd_per_hour * (idle_s + SAVE_FAILS * self.unsaved_s * self.held) / 3600


@dataclass(frozen=True)
class GiveWay:
    """One holder goes from `held` to `keeps` machines."""

    holder: Holder
    keeps: int
    lost_usd: float
    misses_deadline: bool

    @property
    def frees(self) -> int:
        return self.holder.held - self.keeps


@dataclass(frozen=True)
class Need:
    """A job that comes first and lacks machines. `why`: in words, for the sentence."""

    job: str  # public id
    name: str
    effective: float
    needed: int
    takes_s: float  # until it is expected to end, once it has the machines
    why: str


@dataclass(frozen=True)
class Machines:
    """What a holder has: numbers of machines, and the public id of its spot offer."""

    spot: int
    on_demand: int
    offer: str = ""


def victims(need: Need, holders: Sequence[Holder]) -> list[GiveWay]:
    """Who gives way so that the machines needed are free: the cheapest that is enough, else several; nobody if all are not."""
    chosen: list[GiveWay] = []
    needed, rest = need.needed, [h for h in holders if h.may_give_way(need.effective)]
    while needed > 0 and rest:
        offers = sorted((_offer(h, needed, need.takes_s) for h in rest), key=lambda o: _rank(o, needed))
        best = offers[0]
        chosen.append(best)
        rest.remove(best.holder)
        needed -= best.frees
    for one in list(chosen):  # what the last one made unnecessary
        if needed + one.frees <= 0:
            chosen.remove(one)
            needed += one.frees
    return chosen if needed <= 0 else []


def room_proposal(need: Need, way: GiveWay, machines: Machines) -> Proposal:
    """The order to a holder: down to what it keeps, on-demand given up first."""
    holder = way.holder
    spot = min(machines.spot, way.keeps)
    args: dict[str, Any] = {"spot": spot, "on_demand": way.keeps - spot, "for": need.job}
    if spot and machines.offer:
        args["offer"] = machines.offer
    rate = holder.usd_per_hour
    keeps = f"keeps {way.keeps} of its {holder.held} machines" if way.keeps else "leaves until there is room again"
    misses = ", and then misses its deadline" if way.misses_deadline else ""
    return Proposal(
        rule=RULE,
        kind=KIND,
        subject=SUBJECT,
        direction="forward",
        sentence=(
            f"Make room for {need.name}: {holder.name} ({holder.effective:.3g} points against {need.effective:.3g}) saves its "
            f"state and {keeps}{misses}. {need.why[:1].upper()}{need.why[1:]}. It loses about ${way.lost_usd:,.2f}, the least of "
            "those that come after."
        ),
        args=args,
        evidence={
            "priority": holder.effective,
            "priority_for": need.effective,
            "frees": way.frees,
            "needed": need.needed,
            "held": {"spot": machines.spot, "on_demand": machines.on_demand},
            "unsaved_s": round(holder.unsaved_s or 0.0, 1),
            "changeover_s": round(holder.changeover_s, 1),
            "ran_s": round(holder.runs_s, 1),
            "misses_deadline": way.misses_deadline,
            "usd_per_hour": {"now": round(rate * holder.held, 4), "then": round(rate * way.keeps, 4)},
        },
        delta_cost_usd=Effect(way.lost_usd, 0.5 * way.lost_usd, 2 * way.lost_usd),
        confidence=0.8,
        price_usd=way.lost_usd,
        expires_after_s=900.0,
    )


def situation_json(need: Need, holders: Sequence[Holder], machines: dict[int, Machines]) -> dict[str, Any]:
    """What is stored with the decision: enough to make it again."""
    return {
        "need": asdict(need),
        "holders": [asdict(holder) for holder in holders],
        "machines": {str(key): asdict(one) for key, one in machines.items()},
    }


def proposals_again(stored: dict[str, Any], key: int) -> list[Proposal]:
    """What would be proposed to one holder of the same situation now."""
    need, holders = Need(**stored["need"]), [Holder(**one) for one in stored["holders"]]
    machines = Machines(**stored["machines"][str(key)])
    chosen = victims(need, holders)
    return [room_proposal(need, way, machines) for way in chosen if way.holder.key == key]


def _offer(holder: Holder, needed: int, takes_s: float) -> GiveWay:
    """It works on with what it keeps, and has its machines again when the other job has ended."""
    keeps = holder.keeps(needed)
    later_s = takes_s * (1 - keeps / holder.held) + (1 if keeps else 2) * holder.changeover_s
    return GiveWay(holder, keeps, holder.lost_usd(keeps), holder.slack_s is not None and holder.slack_s < later_s)


def _rank(offer: GiveWay, needed: int) -> tuple[bool, bool, float, float, int]:
    """Those that are enough by themselves first, by what is lost; the others by what is lost for each machine."""
    enough = offer.frees >= needed
    price = offer.lost_usd if enough else offer.lost_usd / max(1, offer.frees)
    return offer.misses_deadline, not enough, price, offer.holder.effective, -offer.holder.key
