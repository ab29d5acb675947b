"""A planned job rehearsed on a known market, minutes in a second: the planner's own code with a cloud and a trainer of a few lines.

What a person sees of it is the log; what it cost is compared with `forecasting.simulate` on the same market.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from forecasting.policies.registry import make_policy
from forecasting.problem import Job as Task
from forecasting.problem import Offer as Past
from forecasting.simulate import Market, run_window
from jobs.scheduler.on_demand import on_demand_proposal
from jobs.scheduler.placing import Frame, placed
from jobs.scheduler.planner import Followed, Markets, PlanFacts, SpotQuote, slot_of
from jobs.scheduler.procurement import Standing, machines_proposal, settings_for
from jobs.scheduler.speed import speed_of
from jobs.scheduler.wishes import wishes

DT_S = 0.5
PAST_SLOTS = 200
OFFER = "spot"


@dataclass(frozen=True)
class Stage:
    """Market, job, and what an installation was seen to need. USD per hour of the clock; `counts` goes round from `phase_s` on."""

    counts: Sequence[int]
    tick_s: float
    spot_usd: float
    on_demand_usd: float
    steps: int
    step_time_s: dict[int, float]
    deadline_s: float
    phase_s: float = 0.0
    n_max: int = 2
    slot_s: float = 5.0
    leave_s: float = 1.5
    start_s: float = 3.0
    first_start_s: float = 3.0  # as the planner believes before it has seen one
    boot_s: float = 1.0
    notice_s: float = 10.0
    react_s: float = 1.0  # from a plan to its order being carried out
    quote_age_s: float = 2.0
    silence_s: float = 6.0

    def count(self, at_s: float) -> int:
        return self.counts[int((at_s + self.phase_s) // self.tick_s) % len(self.counts)]

    def counts_of(self, times_s: np.ndarray) -> np.ndarray:
        return np.array([self.count(float(t)) for t in times_s], dtype=np.int64)


@dataclass(eq=False)
class Machine:
    kind: str
    asked_s: float
    started_s: float | None = None
    noticed_s: float | None = None
    ended_s: float | None = None

    @property
    def runs(self) -> bool:
        return self.started_s is not None and self.noticed_s is None and self.ended_s is None

    @property
    def is_coming(self) -> bool:
        return self.started_s is None and self.ended_s is None


@dataclass
class Rehearsal:
    """`run()` plays it to the end; then `cost_usd`, `worlds`, `num_notices`, `ended_s` and `log` say what it came to."""

    stage: Stage
    now_s: float = 0.0
    done: float = 0.0
    machines: list[Machine] = field(default_factory=list)
    world: list[Machine] = field(default_factory=list)  # that the trainer runs on
    state: str = "none"  # none, starting, running, leaving
    until_s: float = 0.0
    begun_s: float | None = None  # of this attempt's first step
    left_s: float | None = None
    order: tuple[int, int] = (0, 0)  # spot, on-demand
    ordered_s: float = -math.inf
    coming_order: tuple[float, tuple[int, int]] | None = None
    changed_s: float = -math.inf
    changes_s: list[float] = field(default_factory=list)
    cover: tuple[int, float, float] = (0, 0.0, 0.0)  # machines, cap, since
    ask: tuple[float, dict[str, float]] | None = None
    due_s: float = 0.0
    is_urgent: bool = False
    shown: set[int] = field(default_factory=set)
    changeovers: list[float] = field(default_factory=list)
    worlds: list[int] = field(default_factory=list)
    num_notices: int = 0
    num_asked: int = 0
    log: list[str] = field(default_factory=list)

    def run(self) -> Rehearsal:
        while self.done < self.stage.steps and self.now_s < 3 * self.stage.deadline_s:
            self._cloud()
            self._trainer()
            self._orders()
            self._planner()
            self.now_s += DT_S
        return self

    @property
    def ended_s(self) -> float:
        return self.now_s

    def cost_usd(self, kind: str = "", since_s: float = -math.inf) -> float:
        price = {"spot": self.stage.spot_usd, "on_demand": self.stage.on_demand_usd}
        mine = [m for m in self.machines if m.started_s is not None and kind in ("", m.kind)]
        held = [((m.ended_s or self.now_s) - max(m.started_s or 0.0, since_s), price[m.kind]) for m in mine]
        return sum(max(0.0, seconds) * usd / 3600 for seconds, usd in held)

    def baseline_usd(self, policy: str) -> float:
        """What `forecasting.simulate` says of a policy on this market, with the changeover that was seen."""
        facts, stage = self._facts(), self.stage
        assert facts.speed is not None
        slot_s = slot_of(stage.deadline_s, stage.slot_s)
        price, work = stage.on_demand_usd * slot_s / 3600, stage.steps * facts.speed.step_time_1_s / slot_s
        task = Task(
            work=work, deadline_slots=math.floor(stage.deadline_s / slot_s), value=10 * work * price, on_demand_price=price,
            n_max=stage.n_max, throughput=facts.speed.curve(stage.n_max), changeover_s=facts.changeover_s, slot_s=slot_s, gamma=4.0,
        )  # fmt: skip
        counts = stage.counts_of(slot_s * np.arange(task.hard_slots))
        market = Market(counts, np.full(len(counts), stage.spot_usd * slot_s / 3600), slot_s)
        return float(run_window(make_policy(policy), task, market, 0).cost)

    def _say(self, text: str) -> None:
        self.log.append(f"{self.now_s:6.1f} s  {text}")

    # The cloud: boots, notices, ends ----------------------------------------------------------------------------------
    def _cloud(self) -> None:
        now_s, stage = self.now_s, self.stage
        for m in self.machines:
            if m.is_coming and now_s >= m.asked_s + stage.boot_s:
                m.started_s = now_s
            if m.noticed_s is not None and m.ended_s is None and now_s >= m.noticed_s + stage.notice_s:
                m.ended_s = now_s
        for m in [m for m in self.machines if m.kind == "spot" and m.runs][stage.count(now_s) :]:
            m.noticed_s = now_s
            self.num_notices += 1
            self.is_urgent, self.due_s = True, min(self.due_s, now_s + DT_S)
            self._say("notice")
            if m in self.world and self.state == "running":
                self._leave()

    # The trainer: starts, trains, leaves ------------------------------------------------------------------------------
    def _leave(self) -> None:
        self.state, self.until_s = "leaving", self.now_s + self.stage.leave_s

    def _trainer(self) -> None:
        now_s, size = self.now_s, len(self.world)
        if self.state == "running":
            self.done += DT_S / self.stage.step_time_s[size]
            if now_s - (self.begun_s or now_s) > 5 * self.stage.step_time_s[size]:
                self.shown.add(size)
        elif self.state == "leaving" and now_s >= self.until_s:
            for m in self.world:
                m.ended_s = now_s if m.noticed_s is not None else m.ended_s
            self.state, self.left_s, self.world = "none", now_s, []
        elif self.state == "starting" and now_s >= self.until_s:
            self.state, self.begun_s = "running", now_s
            came_s = max(m.started_s or 0.0 for m in self.world)
            self.changeovers.append(now_s - max(self.left_s or 0.0, came_s))
            if any(m.noticed_s is not None for m in self.world):
                self._leave()

    # Orders: buy, move, give back -------------------------------------------------------------------------------------
    def _orders(self) -> None:
        now_s = self.now_s
        if self.coming_order and now_s >= self.coming_order[0]:
            self.order, self.ordered_s, self.coming_order = self.coming_order[1], now_s, None
            for kind, wanted in zip(("spot", "on_demand"), self.order, strict=True):
                there = sum(m.kind == kind and (m.runs or m.is_coming) for m in self.machines)
                room = self.stage.count(now_s) - there if kind == "spot" else wanted
                self.machines += [Machine(kind, now_s) for _ in range(min(wanted - there, room))]
        keep = [m for k, n in zip(("spot", "on_demand"), self.order, strict=True) for m in self._running(k)[:n]]
        if any(m.is_coming for m in self.machines):
            return
        if self.state == "none" and keep:
            self.world, self.state, self.begun_s, self.until_s = keep, "starting", None, now_s + self.stage.start_s
            self.worlds.append(len(keep))
            self._say(f"start on {len(keep)} at step {self.done:.0f}")
        elif self.state == "running" and set(self.world) != set(keep):
            self._leave()
        for m in self.machines:
            if m.runs and m not in keep and m not in self.world:
                m.ended_s = now_s

    def _running(self, kind: str) -> list[Machine]:
        return [m for m in self.machines if m.kind == kind and m.runs]

    # The planner: every few seconds, and at once on a notice ----------------------------------------------------------
    def _facts(self) -> PlanFacts:
        stage, size = self.stage, len(self.world)
        times = {n: stage.step_time_s[n] for n in self.shown or {stage.n_max}}
        running = (size, stage.step_time_s[size]) if self.state == "running" and size in self.shown else None
        changeover_s = (median(self.changeovers) if self.changeovers else stage.first_start_s) + stage.boot_s
        held = [m for m in self.machines if m.runs]
        here = len(self._running("spot"))
        if not any(m.noticed_s is not None and m.ended_s is None for m in self.machines):
            here = max(here, stage.count(self.now_s - stage.quote_age_s))
        left_s = 0.0
        if held and self.state == "starting":
            left_s = self.until_s - self.now_s
        elif held and (self.state != "running" or len(held) != size):
            left_s = changeover_s
        return PlanFacts(
            policy="prefer", steps_left=math.ceil(stage.steps - self.done), time_left_s=stage.deadline_s - self.now_s, n_min=1,
            n_max=stage.n_max, speed=speed_of(measured_s=times, now=running), spread=0.05 if self.shown else 0.09,
            changeover_s=changeover_s, changeover_left_s=left_s, held_spot=len(self._running("spot")),
            held_on_demand=len(self._running("on_demand")), spot=SpotQuote(OFFER, "a", stage.spot_usd, here),
            on_demand_usd_per_hour=stage.on_demand_usd, spent_usd=self.cost_usd(), approval_s=4.0,
            followed=Followed(asked="StochasticProgram"),
        )  # fmt: skip

    def _standing(self) -> Standing:
        stage, now_s = self.stage, self.now_s
        spot, on_demand = (
            sum(m.kind == k and (m.runs or m.is_coming) for m in self.machines) for k in ("spot", "on_demand")
        )
        if self.coming_order:
            spot, on_demand = self.coming_order[1]
        since_s = now_s - self.changed_s
        if self.state != "none":
            since_s = min(since_s, now_s - self.begun_s if self.begun_s is not None else 0.0)
        num, cap, begun_s = self.cover
        left_usd = cap - self.cost_usd("on_demand", begun_s)
        limits = settings_for(stage.slot_s, stage.slot_s)
        covered = num if left_usd >= num * stage.on_demand_usd * limits.until_next_s / 3600 else 0
        recent = sum(at_s > now_s - 12 * stage.slot_s for at_s in self.changes_s)
        return Standing(
            spot, on_demand, OFFER if spot else "", since_s, recent, covered, "D-1", left_usd, self.is_urgent
        )

    def _planner(self) -> None:
        if self.ask and self.now_s >= self.ask[0]:
            self._yes(self.ask[1])
        if self.now_s < self.due_s:
            return
        stage, facts, standing = self.stage, self._facts(), self._standing()
        self.is_urgent, self.due_s = False, self.now_s + stage.slot_s
        markets, limits = Markets(stage.slot_s), settings_for(stage.slot_s, stage.slot_s)
        slot_s = slot_of(max(0.0, facts.time_left_s or 0.0), stage.slot_s)
        counts = stage.counts_of(self.now_s - stage.quote_age_s - slot_s * np.arange(PAST_SLOTS - 1, -1, -1))
        markets.past[(OFFER, slot_s)] = Past(counts, np.full(PAST_SLOTS, stage.spot_usd * slot_s / 3600))
        one = placed(facts, *wishes([facts], markets, self.now_s)[0], Frame(standing, limits, None, None, ""))
        if one.ask is None:
            self.ask = None
        elif self.ask is None:
            proposal = on_demand_proposal(facts, one.ask.wish, one.today, standing, limits, standby=one.ask.standby)
            self.ask, self.num_asked = (self.now_s + stage.silence_s, proposal.args), self.num_asked + 1
            self._say(f"asked {proposal.args}")
        change = machines_proposal(facts, one.today, standing, limits)
        if change is not None:
            self._order((one.today.spot, one.today.on_demand), change.sentence)

    def _order(self, machines: tuple[int, int], why: str) -> None:
        self.coming_order, self.changed_s = (self.now_s + self.stage.react_s, machines), self.now_s
        self.changes_s.append(self.now_s)
        self._say(why)

    def _yes(self, args: dict[str, float]) -> None:
        self.ask = None
        self.cover = (int(max(args["on_demand"], args.get("up_to", 0))), args["max_usd"], self.now_s)
        self._order((int(args["spot"]), int(args["on_demand"])), f"yes to {args}")
        self.due_s = min(self.due_s, self.now_s + 2 * DT_S)
