"""From rows to what the deadline rule looks at."""

from __future__ import annotations

import datetime as dt
import os

from jobs.models import Attempt, Instance, Job
from jobs.scheduler.rules.deadline import DeadlineFacts
from jobs.selectors.progress import changeover_s, newest_attempts, paces
from jobs.services.resizes import resize_open, worker_limits

MIN_STEPS = 20  # of an attempt, before its pace is believed
CHANGEOVER_S = 60.0  # until the job itself has shown how long its workers take to stand


def deadline_facts(*, job: Job, now: dt.datetime) -> DeadlineFacts | None:
    """None where the rule has nothing to say: no deadline, no pace, a trainer that cannot be resized, or a resize under way."""
    attempt = newest_attempts(jobs=[job]).get(job.pk)
    if (
        job.deadline is None
        or attempt is None
        or "resize" not in attempt.capabilities
        or resize_open(job=job) is not None
    ):
        return None
    pace = paces(attempts=[attempt], now=now)[job.pk]
    times = [t for t in (pace.recent_s, pace.mean_s) if t]
    if not times or attempt.running_at is None or attempt.world_size != job.num_workers:
        return None
    low, high = worker_limits(job=job)
    num_before = Attempt.objects.filter(job=job, status="resized").count()
    return DeadlineFacts(
        step=job.current_step,
        steps_left=max(0, job.goal_steps - job.current_step),
        time_left_s=(job.deadline - now).total_seconds(),
        num_workers=attempt.world_size,
        min_workers=low,
        max_workers=_most(job, high),
        step_time_s=times[0],
        step_time_fast_s=min(times),
        measured_s=measured_step_times(job=job),
        changeover_s=changeover_s(job=job) or CHANGEOVER_S,
        since_resize_s=(now - attempt.running_at).total_seconds() if num_before else float("inf"),
        steps_at_size=attempt.last_step + 1 - attempt.start_step,
        usd_per_worker_hour=_price(attempt),
    )


def measured_step_times(*, job: Job) -> dict[int, float]:
    """Workers -> seconds a step, from attempts of the job that did at least `MIN_STEPS`; the newest of a size counts."""
    found: dict[int, float] = {}
    for attempt in Attempt.objects.filter(job=job, running_at__isnull=False, ended_at__isnull=False).order_by("fence"):
        done = attempt.last_step + 1 - attempt.start_step
        if attempt.ended_at and attempt.running_at and done >= MIN_STEPS:
            found[attempt.world_size] = (attempt.ended_at - attempt.running_at).total_seconds() / done
    return found


def _most(job: Job, high: int) -> int:
    """The job file's limit where it sets one; without, at most twice what the job was submitted with: nobody asked for more.

    On this machine more workers than cores would only share them.
    """
    if job.backend == "local":
        high = min(high, max(job.num_workers, os.cpu_count() or 1))
    nodes = (job.config.get("resources") or {}).get("nodes") or {}
    first = job.attempts.order_by("fence").values_list("world_size", flat=True).first() or job.num_workers
    return high if nodes.get("max") else min(high, 2 * first)


def _price(attempt: Attempt) -> float:
    """USD an hour for one worker of the attempt."""
    held = Instance.objects.filter(attempt=attempt).values_list("price_usd_per_hour", flat=True)
    return float(sum(held)) / max(1, attempt.world_size)
