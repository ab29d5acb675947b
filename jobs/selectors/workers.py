"""Step time per worker over steps. W workers by rank (rows), B bins (columns)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jobs.models import Attempt, Job, Worker
from jobs.selectors.grids import grid_workers
from jobs.selectors.windows import Window, window_of


@dataclass(frozen=True)
class StepTimes:
    """Seconds per optimizer step. A worker that did not run in a bin has NaN there."""

    window: Window
    workers: list[Worker]  # of the newest attempt shown, by rank
    mean: NDArray  # [W, B]
    highest: NDArray  # [W, B], -inf without any
    wait: NDArray  # [W, B] mean seconds a step spent waiting for other ranks
    own: NDArray  # [W, B] mean seconds of own work in a step
    micro: NDArray  # [W, B] own seconds for one micro-batch
    nonfinite: NDArray  # [W, B] steps whose gradient norm was not finite
    median: float | None  # of all cells shown
    worlds: list[tuple[int, int, int]]  # (first step, workers, fence) of each stretch of the branch


def step_times(
    job: Job,
    *,
    since: int = 0,
    until: int | None = None,
    bins: int = 120,
    attempt: Attempt | None = None,
    width: int | None = None,
) -> StepTimes:
    """Step times of the steps [`since`, `until`), over the surviving branch or one attempt."""
    attempts = {a.pk: a for a in Attempt.objects.filter(job=job)}
    num = max((a.world_size for a in attempts.values() if a.last_step >= 0), default=0)
    window = window_of(job, since=since, until=until, bins=bins, rows=num, attempt=attempt, width=width)
    grid = grid_workers(window.segments, start=window.start, width=window.width, num_bins=window.num_bins, num=num)
    planes = {name: values.T for name, values in grid.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = planes["step_time_sum_s"] / planes["num_steps"]
        wait = planes["wait_sum_s"] / planes["num_steps"]
        own = planes["compute_sum_s"] / planes["num_own"]
        micro = planes["compute_sum_s"] / planes["num_micro"]
    finite = mean[np.isfinite(mean)]
    newest = max((s.attempt_id for s in window.segments), default=None)
    return StepTimes(
        window=window,
        workers=list(Worker.objects.filter(attempt_id=newest).order_by("rank")) if newest else [],
        mean=mean,
        highest=planes["step_time_max_s"],
        wait=wait,
        own=own,
        micro=micro,
        nonfinite=planes["num_nonfinite"],
        median=float(np.median(finite)) if len(finite) else None,
        worlds=[(s.start, attempts[s.attempt_id].world_size, attempts[s.attempt_id].fence) for s in window.segments],
    )


def worker_form(worker: Worker) -> dict[str, Any]:
    """A worker as charts name it."""
    return {
        "rank": worker.rank,
        "host": worker.host,
        "step_time_s": worker.step_time_s,
        "micro_time_s": worker.micro_time_s,
        "num_micro": worker.num_micro,
        "last_step": worker.last_step,
        "heartbeat_at": worker.heartbeat_at,
    }
