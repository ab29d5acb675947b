"""From rows to what the straggler rule looks at, and what its decisions brought.

W workers by rank, B bins of steps.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
from django.db.models import Max
from numpy.typing import NDArray

from jobs.deadlines import CHANGEOVER_S
from jobs.machines import is_planned
from jobs.models import Attempt, Decision, Job
from jobs.planes import Planes
from jobs.scheduler.outcomes import pace_outcome
from jobs.scheduler.rules.straggler import RULE, StragglerFacts
from jobs.scheduler.worker_signals import WorkerFacts
from jobs.selectors.branches import segments_of, segments_surviving
from jobs.selectors.grids import grid_workers
from jobs.selectors.progress import changeover_s, newest_attempts
from jobs.services.resizes import resize_open, worker_limits
from jobs.situations import past_decisions, series_level, usd_per_hour

WINDOW_BINS = 8


def straggler_facts(*, job: Job, now: dt.datetime) -> StragglerFacts | None:
    """None where nothing could be done: one worker, a trainer that follows no such order, a resize under way, no own times."""
    attempt = newest_attempts(jobs=[job]).get(job.pk)
    if attempt is None or attempt.world_size < 2 or resize_open(job=job) is not None:
        return None
    can_rebalance = "rebalance" in attempt.capabilities
    can_drain = "resize" in attempt.capabilities and not is_planned(job)
    width = 4 ** series_level(job.goal_steps)
    planes = _window(attempt, width) if can_rebalance or can_drain else None
    if planes is None:
        return None
    return StragglerFacts(
        step=job.current_step,
        steps_left=max(0, job.goal_steps - job.current_step),
        bin_steps=width,
        workers=_workers(attempt, planes),
        step_time_s=float(np.nanmedian(_wall(planes))),
        can_rebalance=can_rebalance,
        can_drain=can_drain,
        min_workers=worker_limits(job=job)[0],
        changeover_s=changeover_s(job=job) or CHANGEOVER_S,
        usd_per_worker_hour=usd_per_hour(job) / attempt.world_size,
        past=past_decisions(job=job, rule=RULE, now=now),
        params=job.config.get("rules", {}).get(RULE, {}),
    )


def shares_since(*, attempt: Attempt) -> int:
    """The first step of the attempt that was done under the shares in force."""
    applied = attempt.directives.filter(action="rebalance", status="applied").aggregate(m=Max("applied_step"))["m"]
    return max(attempt.start_step, applied or 0)


def _window(attempt: Attempt, width: int) -> Planes | None:
    """Planes [B, W] of the newest whole bins under the shares in force; None before there is one with own times."""
    since = -(-shares_since(attempt=attempt) // width)
    stop = (attempt.last_step + 1) // width
    first = max(since, stop - WINDOW_BINS)
    if first >= stop:
        return None
    planes = grid_workers(
        segments_of(attempt), start=first * width, width=width, num_bins=stop - first, num=attempt.world_size
    )
    return planes if planes["num_own"].any() else None


def _workers(attempt: Attempt, planes: Planes) -> tuple[WorkerFacts, ...]:
    throttled = {
        rank
        for rank, system in attempt.workers.values_list("rank", "system")
        if (system or {}).get("throttled") is True
    }
    with np.errstate(invalid="ignore", divide="ignore"):
        micro = planes["compute_sum_s"] / planes["num_micro"]
        sizes = planes["num_micro"].sum(axis=0) / planes["num_own"].sum(axis=0)
    return tuple(
        WorkerFacts(
            rank=rank,
            micro_s=tuple(round(float(t), 7) if np.isfinite(t) else None for t in micro[:, rank]),
            num_micro=float(np.nan_to_num(sizes[rank])),
            throttled=rank in throttled,
        )
        for rank in range(attempt.world_size)
    )


def _wall(planes: Planes) -> NDArray:
    """[B] wall time of a step, by the slowest report of each bin; NaN without one."""
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = planes["step_time_sum_s"] / planes["num_steps"]
    return np.where(np.isnan(mean).all(axis=1), np.nan, np.nanmax(np.nan_to_num(mean, nan=-np.inf), axis=1))


def pace_measured(*, decision: Decision, num_bins: int) -> dict[str, Any] | None:
    """Step time before and after a decision on workers took effect; None while too little has been trained under it."""
    job, step = decision.job, decision.applied_step
    if step is None:
        return None
    width = 4 ** series_level(job.goal_steps)
    if job.ended_at is None and job.current_step < step + num_bins * width:
        return None
    first = -(-step // width)  # whole bins on either side
    before = _medians(job, max(0, step // width - num_bins), step // width, width)
    after = _medians(job, first, first + num_bins, width)
    return pace_outcome(
        before_s=before,
        after_s=after,
        steps_left=max(0, job.goal_steps - step),
        window_steps=num_bins * width,
        expected_before_s=decision.evidence.get("step_time_s"),
        expected_after_s=decision.evidence.get("step_time_after_s"),
    )


def _medians(job: Job, first: int, stop: int, width: int) -> float | None:
    """Median step time of the bins [first, stop) of the surviving branch."""
    num = max((a.world_size for a in Attempt.objects.filter(job=job)), default=0)
    if first >= stop or not num:
        return None
    segments = segments_surviving(job)
    wall = _wall(grid_workers(segments, start=first * width, width=width, num_bins=stop - first, num=num))
    known = wall[np.isfinite(wall)]
    return float(np.median(known)) if known.size else None
