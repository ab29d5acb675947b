"""How long steps and changes of a planned job take, by its attempts and machines or by those of jobs like it."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from statistics import median

from jobs.models import Attempt
from jobs.selectors.planning import JobRows, shows_pace


def step_times(rows: JobRows) -> tuple[dict[int, float], tuple[int, float] | None, list[float]]:
    """(measured seconds a step by number of workers, the size that runs and its pace, the paces that are known of it)."""
    measured: dict[int, float] = {}
    now: tuple[int, float] | None = None
    known: list[float] = []
    for attempt in rows.attempts:
        if not shows_pace(attempt, rows.job.goal_steps):
            continue
        measured[attempt.world_size] = mean_s = _mean_s(attempt)
        if attempt is rows.attempts[-1] and attempt.ended_at is None:
            recent_s = rows.step_time_s or mean_s
            now, known = (attempt.world_size, recent_s), [recent_s, mean_s]
    if measured:
        return measured, now, known or list(measured.values())[-1:]
    others: dict[int, list[float]] = defaultdict(list)
    for attempt in rows.alike:
        others[attempt.world_size].append(_mean_s(attempt))
    times = max(others.values(), key=len, default=[])
    return {size: median(seen) for size, seen in others.items()}, None, [*times, 1.2 * max(times)] if times else []


def _mean_s(attempt: Attempt) -> float:
    until = attempt.ended_at or attempt.heartbeat_at
    assert until is not None
    assert attempt.running_at is not None
    done = attempt.last_step + 1 - attempt.start_step
    return max(1e-6, (until - attempt.running_at).total_seconds() / done)


def changeover_of(rows: JobRows) -> float | None:
    """Seconds without progress at a change, in the middle of the attempts of the job or of those like it.

    From the end of the attempt that left at a snapshot, or from the order of the new one, to its first report; waiting for
    machines is no part of it.
    """
    attempts, lost = rows.attempts or rows.alike, []
    for i, attempt in enumerate(attempts):
        before = attempts[i - 1] if i and rows.attempts else None
        left_at = before.ended_at if before is not None and before.status == "resized" else None
        there = [m.started_at for m in rows.machines if m.started_at and m.started_at <= attempt.created_at]
        begun = max([left_at, *there]) if left_at else attempt.created_at
        if attempt.running_at is not None and attempt.running_at >= begun:
            lost.append((attempt.running_at - begun).total_seconds())
    return median(lost) if lost else None


def boot_of(rows: JobRows) -> float:
    """Seconds from the order of a machine to its start, in the middle of those that were to be had; 0 where there was none yet."""
    waits = [
        (m.started_at - m.created_at).total_seconds() for m in rows.machines if m.started_at and not m.asked.get("num")
    ]
    return max(0.0, median(waits)) if waits else 0.0


def changeover_left(rows: JobRows, changeover_s: float, now: dt.datetime) -> float:
    """Seconds until what is held trains: all of a changeover before the trainer has moved there, then what is left of it."""
    held, newest = rows.held("spot") + rows.held("on_demand"), rows.attempts[-1] if rows.attempts else None
    if not held:
        return 0.0
    if newest is None or newest.ended_at is not None:
        return changeover_s
    if newest.running_at is None:
        return max(0.0, changeover_s - (now - newest.created_at).total_seconds())
    return 0.0 if newest.world_size == held else changeover_s
