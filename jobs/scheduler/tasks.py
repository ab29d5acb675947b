"""A planned job as a task of the market library: slots, machines, USD per machine and slot. Pure."""

from __future__ import annotations

import math
from dataclasses import replace

from forecasting.policies.epoch import Follow
from forecasting.policies.forecasts import Forecaster, markov_forecast, with_ahead
from forecasting.policies.registry import PROGRAMME, make_policy
from forecasting.problem import Job as Task
from forecasting.problem import Situation
from jobs.scheduler.planner import Markets, PlanFacts, slot_of

CHANGEOVER_STEP = 1.3  # changeovers are told apart by this factor, so that jobs alike share a pass
ASK_SHARE = 0.1  # at most so much of the time left is kept for an approval
MAX_SIZES = 8


def deadline_slots(facts: PlanFacts, markets: Markets) -> float:
    """The deadline itself, nothing kept in hand, in slots from now."""
    left_s = facts.time_left_s or 0.0
    return left_s / slot_of(left_s, markets.slot_s)


def situation_of(facts: PlanFacts, markets: Markets, clock_s: float) -> Situation:
    """The forecasting library's view of a job: slots, machines, USD per machine and slot, seconds of the market."""
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
        changeover_s=_stepped(facts.changeover_s) * markets.pace,
        slot_s=slot_s * markets.pace,
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
        changeover_left_s=facts.changeover_left_s * markets.pace,
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


def follow_of(
    facts: PlanFacts, situation: Situation, slot_s: float, forecaster: Forecaster = markov_forecast
) -> Follow | None:
    """The policy that decides, on the even line from where the job could first be planned; None for the programme.

    Each job has a policy of its own, whose plans depend on what it was asked before; the forecaster may be shared.
    """
    name = facts.followed.policy
    if name == PROGRAMME or facts.speed is None:
        return None
    task = situation.job
    done = facts.steps_done * facts.speed.step_time_1_s / slot_s
    slot = round(facts.begun_s / slot_s)
    line = replace(task, work=situation.work_left + done, deadline_slots=slot + task.deadline_slots)
    return Follow(make_policy(name, with_ahead(situation.offers[0], forecaster)).policy, line, slot)
