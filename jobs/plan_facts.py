"""From the rows of an epoch to the facts that the planner reads."""

from __future__ import annotations

import datetime as dt
import math
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from forecasting.problem import Ahead
from forecasting.problem import Offer as Market
from jobs.completions import completion_known, work_left
from jobs.deadlines import CHANGEOVER_S
from jobs.machines import declared_size, policy_asked, spot_policy
from jobs.models import Job, Offer, PolicyWeights, Rule
from jobs.plan_offers import needs_words, on_demand_usd_per_hour, spot_quote, spot_refused_words
from jobs.scheduler import procurement
from jobs.scheduler.completion import Completion
from jobs.scheduler.forecasts import ForecastUse, StoredForecast, count_ahead, price_ahead
from jobs.scheduler.kinds import Kind, kind_of
from jobs.scheduler.planner import SELECTOR, Followed, Markets, PlanFacts, slot_of, uses_programme
from jobs.scheduler.speed import Speed, pace_spread, speed_of
from jobs.selectors.market import offer_series
from jobs.selectors.planning import (
    JobRows,
    OfferNow,
    Rules,
    held_by_offer,
    rule_in_force,
)
from jobs.selectors.quotas import Unplanned
from jobs.selectors.refusals import Refusals
from jobs.selectors.team_budgets import Money
from jobs.selectors.timings import boot_of, changeover_left, changeover_of, step_times
from jobs.services.resizes import worker_limits

MAX_SPREAD = 0.4
PAST_SLOTS = 2_000  # what the market's chain is learnt from


@dataclass
class Epoch:
    """What one epoch has read. `due` are the jobs to plan; the others count for quotas and for the spot they hold."""

    now: dt.datetime
    jobs: list[Job]
    rows: dict[int, JobRows]
    offers: list[OfferNow]
    rules: Rules
    slot_s: float
    every_s: float
    known: dict[tuple[str, str], PolicyWeights] = field(default_factory=dict)
    kinds: dict[tuple[str, str], tuple[Offer, Kind]] = field(default_factory=dict)  # that jobs of the selector were of
    refusals: dict[int, Refusals] = field(default_factory=dict)  # by offer
    forecasts: dict[tuple[int, str], StoredForecast] = field(default_factory=dict)  # by offer and target
    unplanned: Unplanned = field(default_factory=lambda: Unplanned({}, {}))  # what else counts against the quotas
    moneys: dict[int, Money] = field(default_factory=dict)  # by team that has a budget
    markets: Markets = field(init=False)
    limits: procurement.Settings = field(init=False)
    completions: dict[int, Completion | None] = field(init=False, default_factory=dict)  # by job, read once
    used: dict[tuple[str, float], tuple[ForecastUse, ForecastUse]] = field(
        init=False, default_factory=dict
    )  # by market

    def __post_init__(self) -> None:
        self.markets = Markets(self.slot_s)
        self.limits = procurement.settings_for(self.slot_s, self.every_s)
        self.held = held_by_offer(list(self.rows.values()))
        self.held_by_all = {offer: sum(jobs.values()) for offer, jobs in self.held.items()}
        self.gpus: dict[int, int] = defaultdict(int)
        self.gpus.update(self.unplanned.gpus)
        self.by_team: dict[int, list[JobRows]] = defaultdict(list)
        self.lacking: dict[int, dict[int, tuple[float, int]]] = defaultdict(dict)  # team -> job -> (priority, machines)
        for rows in self.rows.values():
            self.by_team[rows.job.team_id].append(rows)
            self.gpus[rows.job.team_id] += max(rows.gpus(), rows.ordered)
            if rows.state is not None and (lacks := rows.state.plan.get("lacks")):
                self.lacking[rows.job.team_id][rows.job.pk] = (rows.state.priority, lacks)
        self.kept_usd = {
            team: {pk: float(usd + money.starting.get(pk, 0)) for pk, usd in money.leaving.items()}
            for team, money in self.moneys.items()
        }
        self.kept_usd_by_all = {team: sum(kept.values()) for team, kept in self.kept_usd.items()}
        for team, waiting in self.unplanned.waiting.items():
            self.lacking[team] |= {one.job: (one.priority, one.num_gpus) for one in waiting}

    def completion(self, job: Job) -> Completion | None:
        """How far a job is from its target, as it was last fitted."""
        if job.pk not in self.completions:
            self.completions[job.pk] = completion_known(job)
        return self.completions[job.pk]

    def kept_for_others(self, job: Job, effective: float) -> int:
        """Machines that jobs of its team that come first still lack."""
        others = self.lacking[job.team_id].items()
        return sum(num for pk, (priority, num) in others if pk != job.pk and priority > effective)

    def lacks(self, job: Job, effective: float, num: int) -> None:
        """Note what a job still lacks within its team's quota."""
        self.lacking[job.team_id].pop(job.pk, None)
        if num:
            self.lacking[job.team_id][job.pk] = (effective, num)

    def usd_left(self, job: Job) -> float | None:
        """What its team's budget has left for a job beside what is spent and what is kept for the others; None without a budget."""
        if (money := self.moneys.get(job.team_id)) is None or money.budget_usd is None:
            return None
        others = self.kept_usd_by_all[job.team_id] - self.kept_usd[job.team_id].get(job.pk, 0.0)
        return float(money.budget_usd - money.spent_usd) - others

    def usd_keep(self, job: Job, usd: float) -> None:
        """Keep so much of its team's budget for a job, if no more is kept already."""
        if job.team_id in self.moneys:
            before = self.kept_usd[job.team_id].get(job.pk, 0.0)
            self.kept_usd[job.team_id][job.pk] = max(before, usd)
            self.kept_usd_by_all[job.team_id] += max(0.0, usd - before)

    def spot_of_others(self, offer: Offer, job: Job) -> int:
        """Spot machines of an offer that the other planned jobs hold, have asked for, or were given in this epoch."""
        return self.held_by_all.get(offer.pk, 0) - self.held[offer.pk].get(job.pk, 0)

    def spot_take(self, offer: Offer, job: Job, num: int) -> None:
        """Count so many spot machines of an offer as the job's, if it holds no more already."""
        more = max(0, num - self.held[offer.pk].get(job.pk, 0))
        self.held[offer.pk][job.pk] = self.held[offer.pk].get(job.pk, 0) + more
        self.held_by_all[offer.pk] = self.held_by_all.get(offer.pk, 0) + more

    def is_empty(self, offer: Offer) -> bool:
        """Whether an offer was refused so lately that it is not counted on."""
        return (refused := self.refusals.get(offer.pk)) is not None and refused.empty_until > self.now

    def offer(self, key: str) -> OfferNow:
        return next(o for o in self.offers if o.key == key)


def facts_of(epoch: Epoch, rows: JobRows) -> PlanFacts:
    """A job as the planner sees it."""
    job = rows.job
    measured, running, known = step_times(rows)
    low, high = worker_limits(job=job)
    high = max(low, min(high, job.num_workers)) if not _nodes(job).get("max") else high
    speed = speed_of(measured_s=measured, now=running) or _declared(job)
    steps_left, steps_spread = work_left(job, epoch.completion(job))
    changeover_s = (changeover_of(rows) or min(CHANGEOVER_S, epoch.slot_s)) + boot_of(rows)
    facts = PlanFacts(
        policy=spot_policy(job),
        steps_left=steps_left,
        time_left_s=(job.deadline - epoch.now).total_seconds() if job.deadline else None,
        n_min=low,
        n_max=high,
        speed=speed,
        spread=min(MAX_SPREAD, math.hypot(pace_spread(known), steps_spread)),
        changeover_s=changeover_s,
        changeover_left_s=changeover_left(rows, changeover_s, epoch.now),
        held_spot=rows.held("spot"),
        held_on_demand=rows.held("on_demand"),
        spent_usd=rows.spent_usd,
        budget_usd=float(job.budget_usd) if job.budget_usd is not None else None,
        approval_s=_approval_s(epoch, rows),
        allowed=needs_words(epoch, job),
        **_line(epoch, rows),
    )
    spot = spot_quote(epoch, rows, facts)
    facts = replace(
        facts,
        spot=spot,
        refused=spot_refused_words(epoch, rows, spot),
        on_demand_usd_per_hour=on_demand_usd_per_hour(epoch, rows, spot),
    )
    return replace(facts, followed=_followed(epoch, job, facts))


def _line(epoch: Epoch, rows: JobRows) -> dict[str, Any]:
    """Where the even line to the deadline starts: at the first plan that knew a pace."""
    first = (rows.state.plan if rows.state else {}).get("first")
    if not first:
        return {}
    begun_s = (epoch.now - dt.datetime.fromisoformat(first["at"])).total_seconds()
    steps_left = max(0, rows.job.goal_steps - rows.job.current_step)
    return {"begun_s": max(0.0, begun_s), "steps_done": max(0, int(first["steps_left"]) - steps_left)}


def _followed(epoch: Epoch, job: Job, facts: PlanFacts) -> Followed:
    """The policy that the file names, or the one that leads on the offer for jobs of its kind."""
    asked = policy_asked(job)
    if asked != SELECTOR:
        return Followed(asked, asked)
    if facts.spot is None or not uses_programme(facts):
        return Followed()
    kind, offer = kind_of(facts, epoch.slot_s), epoch.offer(facts.spot.offer).offer
    epoch.kinds[(facts.spot.offer, kind.key)] = (offer, kind)
    row = epoch.known.get((facts.spot.offer, kind.key))
    if row is None or not row.leader:
        return Followed(num_windows=row.num_windows if row else 0)
    return Followed(row.leader, SELECTOR, row.weight, row.regret, row.num_windows)


def _nodes(job: Job) -> dict[str, int]:
    return (job.config.get("resources") or {}).get("nodes") or {}


def _declared(job: Job) -> Speed | None:
    """The pace that the job file declares."""
    declared = (job.config.get("goal") or {}).get("step_time_s")
    return speed_of(measured_s={declared_size(job): float(declared)}) if declared else None


def _approval_s(epoch: Epoch, rows: JobRows) -> float:
    """How long on-demand may have to wait for an answer: not at all where a rule gives it."""
    rule = rule_in_force(epoch.rules, rows.job, procurement.ASK_KIND)
    if rule is not None and rule.autonomy in ("auto", "auto_within_limits"):
        return 0.0
    return float(rule.default_after_s) if rule is not None else float(Rule._meta.get_field("default_after_s").default)


def past_read(epoch: Epoch, facts: PlanFacts) -> PlanFacts:
    """Read the offer's past and what is forecast on the job's slots, once per offer and slot length; the facts say by whom."""
    if not uses_programme(facts) or facts.spot is None or facts.time_left_s is None:
        return facts
    slot_s = slot_of(facts.time_left_s, epoch.slot_s)
    key = (facts.spot.offer, slot_s)
    if key not in epoch.markets.past:
        epoch.markets.past[key], epoch.used[key] = _market(epoch, epoch.offer(facts.spot.offer), slot_s)
    price, count = epoch.used[key]
    return replace(facts, forecasts=(price, count) if facts.followed.policy.startswith("AHAP") else (price,))


def _market(epoch: Epoch, offer: OfferNow, slot_s: float) -> tuple[Market, tuple[ForecastUse, ForecastUse]]:
    """An offer's past with the price and the availability ahead, and whose forecasts these are."""
    past, now_s = market_past(offer, slot_s=slot_s, now=epoch.now), epoch.now.timestamp()
    stored = {target: epoch.forecasts.get((offer.offer.pk, target)) for target in ("price", "availability")}
    prices, price = price_ahead(stored["price"], price=float(past.price[-1]), now_s=now_s, slot_s=slot_s)
    counts, count = count_ahead(stored["availability"], count=int(past.availability[-1]), now_s=now_s, slot_s=slot_s)
    return replace(past, ahead=Ahead(counts, prices)), (price, count)


def market_past(now_at: OfferNow, *, slot_s: float, now: dt.datetime) -> Market:
    """Availability and price of an offer on slots up to now, in machines and USD per machine and slot."""
    start = now - dt.timedelta(seconds=PAST_SLOTS * slot_s)
    offer = now_at.offer
    series = offer_series(offer=offer, start=start, end=now, gap_s=slot_s)
    price_now = now_at.usd_per_hour * slot_s / 3600
    if series is None or series.price is None or not len(series):
        return Market(np.array([now_at.availability or 0]), np.array([price_now]), str(offer))
    price = np.nan_to_num(np.asarray(series.price, float) * slot_s / 3600, nan=price_now)
    price[-1] = price_now
    if series.availability is None:
        return Market(np.full(len(price), 10**6), price, str(offer))
    availability = np.nan_to_num(np.asarray(series.availability, float), nan=0.0).astype(np.int64)
    if now_at.availability is not None:
        availability[-1] = now_at.availability
    return Market(availability, price, str(offer))
