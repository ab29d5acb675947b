"""The market of the demo, rehearsed: what its checks ask for happens, and the planner is cheaper than what it is compared with."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jobs.demo import market_job as demo
from tests.planning.rehearsal import Rehearsal, Stage

TWIN_S = 64.0
STEP_TIME_S = {1: 0.9, 2: 0.56}


def stage(pace: float, **fields: float) -> Stage:
    tick_s = TWIN_S / demo.TICKS_OF_TWIN
    hourly = {"spot_usd": demo.PRICE_SPOT * demo.FACTOR, "on_demand_usd": demo.PRICE_ON_DEMAND * demo.FACTOR}
    known = {
        "deadline_s": demo.DEADLINE_FACTOR * TWIN_S,
        "phase_s": 1.0,
        "notice_s": demo.NOTICE_S,
    }
    step_time_s = {n: pace * seconds for n, seconds in STEP_TIME_S.items()}
    return Stage(demo.AVAILABILITY, tick_s, **hourly, steps=demo.STEPS, step_time_s=step_time_s, **{**known, **fields})


@pytest.mark.parametrize("pace", [0.95, 1.1, 1.3])
@pytest.mark.parametrize("start_s", [2.0, 3.5, 5.0])
def test_the_demo_is_in_time_and_cheaper_than_uniform_progress_however_long_starts_and_steps_take(
    start_s: float, pace: float
) -> None:
    run = Rehearsal(stage(pace, start_s=start_s)).run()
    told = "\n".join(run.log)
    assert run.ended_s <= run.stage.deadline_s - 5, told
    assert run.num_notices >= 2, told
    assert sum(before != after for before, after in pairwise(run.worlds)) >= 3, told
    assert run.num_asked >= 1, told
    assert run.cost_usd("on_demand") > 0, told
    others = {policy: run.baseline_usd(policy) for policy in ("UniformProgress", "OnDemandOnly")}
    assert run.cost_usd() < 0.95 * min(others.values()), f"${run.cost_usd():.2f}, {others}\n{told}"
