"""How far a job is from its target, as it was last fitted, for whoever plans with it."""

from __future__ import annotations

import math

from jobs.models import Job
from jobs.scheduler.completion import Completion


def completion_known(job: Job) -> Completion | None:
    """What was fitted to the job's loss last. No query where `signal_state` was selected with it."""
    state = getattr(job, "signal_state", None)
    return Completion.from_json(state.completion) if state is not None and state.completion else None


def work_left(job: Job, completion: Completion | None) -> tuple[int, float]:
    """(steps still to do: those of the goal, or fewer where the fit is nearly sure of the target; their relative spread)."""
    left = max(0, job.goal_steps - job.current_step)
    if completion is None or completion.target is None or not left:
        return left, 0.0
    ends = completion.ends
    sure = max(1, min(left, math.ceil(ends.high) - job.current_step))
    return sure, max(
        0.0, ends.high - max(ends.low, job.current_step)
    ) / 2.56 / sure  # 80 % of a normal one is 2.56 wide
