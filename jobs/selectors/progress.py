"""How far a job is and when it will be done, by the pace it has shown."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from django.db.models import Max

from forecasting.outlook import Band
from jobs.models import Attempt, Job, SignalState, Worker
from jobs.scheduler.completion import Completion


@dataclass(frozen=True)
class Pace:
    """Seconds per step: over the last steps (`recent_s`) and over the whole attempt (`mean_s`), where known."""

    recent_s: float | None = None
    mean_s: float | None = None


@dataclass(frozen=True)
class Progress:
    """`share` of the steps done; `finish_at` by the recent pace, `finish_low`..`finish_high` by the faster and slower of both.

    Where a target loss is expected to end the job before its last step, the finish is that of the target, with its range.
    """

    step: int
    goal: int
    share: float
    finish_at: dt.datetime | None = None
    finish_low: dt.datetime | None = None
    finish_high: dt.datetime | None = None
    step_time_s: float | None = None
    completion: Completion | None = None

    def margin_s(self, deadline: dt.datetime | None) -> float | None:
        """Seconds between the expected finish and the deadline; negative when late."""
        if deadline is None or self.finish_at is None:
            return None
        return (deadline - self.finish_at).total_seconds()


def newest_attempts(*, jobs: Iterable[Job]) -> dict[int, Attempt]:
    """Job id -> its attempt with the highest fence. One query."""
    newest: dict[int, Attempt] = {}
    for attempt in Attempt.objects.filter(job__in=[job.pk for job in jobs]).order_by("fence"):
        newest[attempt.job_id] = attempt
    return newest


def paces(*, attempts: Iterable[Attempt], now: dt.datetime) -> dict[int, Pace]:
    """Job id -> pace of its attempt. The slowest worker sets the recent pace. One query."""
    by_id = {attempt.pk: attempt for attempt in attempts}
    slowest = Worker.objects.filter(attempt__in=by_id).order_by().values("attempt").annotate(s=Max("step_time_s"))
    recent = {row["attempt"]: row["s"] for row in slowest}
    found = {}
    for pk, attempt in by_id.items():
        num_done = attempt.last_step + 1 - attempt.start_step
        mean_s = None
        if attempt.running_at and num_done > 0:
            end = attempt.heartbeat_at or now
            mean_s = max(0.0, (end - attempt.running_at).total_seconds()) / num_done
        found[attempt.job_id] = Pace(recent.get(pk), mean_s)
    return found


def progress_of(job: Job, pace: Pace, now: dt.datetime, completion: Completion | None = None) -> Progress:
    """Where the job stands. Only a running job has an expected finish."""
    share = min(1.0, job.current_step / job.goal_steps)
    step_times = [t for t in (pace.recent_s, pace.mean_s) if t]
    if job.status != "running" or not step_times:
        return Progress(job.current_step, job.goal_steps, share, completion=completion)
    goal = float(job.goal_steps)
    early = completion is not None and completion.ends_early
    ends = completion.ends if completion is not None and early else Band(goal, goal, goal)

    def at(step: float, step_time_s: float) -> dt.datetime:
        return now + dt.timedelta(seconds=max(0.0, step - job.current_step) * step_time_s)

    return Progress(
        job.current_step, job.goal_steps, share, at(ends.expected, step_times[0]), at(ends.low, min(step_times)),
        at(ends.high, max(step_times)), step_times[0], completion,
    )  # fmt: skip


def progresses(*, jobs: Iterable[Job], now: dt.datetime) -> dict[int, Progress]:
    """Job id -> progress, in three queries."""
    jobs = list(jobs)
    pace = paces(attempts=newest_attempts(jobs=jobs).values(), now=now)
    fits = completions(jobs=jobs)
    return {job.pk: progress_of(job, pace.get(job.pk, Pace()), now, fits.get(job.pk)) for job in jobs}


def completions(*, jobs: Iterable[Job]) -> dict[int, Completion]:
    """Job id -> how far it is from its target, as last fitted. One query."""
    rows = SignalState.objects.filter(job__in=[job.pk for job in jobs]).exclude(completion={})
    return {pk: Completion.from_json(data) for pk, data in rows.values_list("job_id", "completion")}


def changeover_s(*, job: Job) -> float | None:
    """Seconds from the order of an attempt to its first report, in the middle of the job's attempts."""
    rows = Attempt.objects.filter(job=job, running_at__isnull=False).values_list("created_at", "running_at")
    lost = [(ran - made).total_seconds() for made, ran in rows if ran is not None and ran >= made]
    return median(lost) if lost else None
