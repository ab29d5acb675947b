"""The market of the demo, rehearsed: what its checks ask for happens, and the planner is cheaper than what it is compared with."""

from __future__ import annotations

from itertools import pairwise

import pytest

from jobs.demo import market_job as demo
from tests.planning.rehearsal import Rehearsal, Stage

STEP_S = (
    4 * demo.MICRO_S + 0.05
)  # of the twin: four micro-batches on each of its workers, and what the step takes besides


def stage(pace: float, *, second: float, step_s: float = STEP_S, **fields: float) -> Stage:
    """A job `pace` times as slow as its twin, on one worker `second` times as slow as on two."""
    twin_s = demo.STEPS * step_s
    hourly = {"spot_usd": demo.PRICE_SPOT[2] * demo.FACTOR, "on_demand_usd": demo.PRICE_ON_DEMAND * demo.FACTOR}
    return Stage(
        demo.AVAILABILITY, twin_s / demo.TICKS_OF_TWIN, **hourly, steps=demo.STEPS,
        step_time_s={1: second * pace * step_s, 2: pace * step_s}, deadline_s=demo.DEADLINE_FACTOR * twin_s, phase_s=1.0,
        notice_s=demo.NOTICE_S, **fields,
    )  # fmt: skip


@pytest.mark.parametrize("second", [1.7, 1.95])
@pytest.mark.parametrize(("pace", "start_s"), [(0.97, 0.7), (1.04, 2.0), (1.12, 4.0)])
@pytest.mark.parametrize("first_start_s", [3.0, 13.0])
def test_the_demo_is_in_time_and_cheaper_than_uniform_progress_however_long_starts_and_steps_take(
    first_start_s: float, start_s: float, pace: float, second: float
) -> None:
    run = Rehearsal(stage(pace, second=second, start_s=start_s, first_start_s=first_start_s)).run()
    told = "\n".join(run.log)
    assert run.ended_s <= run.stage.deadline_s - 10, told
    assert run.num_notices >= 2, told
    assert sum(before != after for before, after in pairwise(run.worlds)) >= 3, told
    assert run.num_asked >= 1, told
    assert run.cost_usd("on_demand") > 0, told
    others = {policy: run.baseline_usd(policy) for policy in ("UniformProgress", "OnDemandOnly")}
    assert run.cost_usd() < 0.8 * min(others.values()), f"${run.cost_usd():.2f}, {others}\n{told}"
