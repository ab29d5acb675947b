"""Deadline: a job that will be late at its present pace gets the fewest workers with which it will be in time.

Step times of other sizes are measured where earlier attempts of the job show them; else they follow Amdahl's law (AFIPS 1967) from
the size that runs, with a tenth of the step taken not to shrink. More workers are asked for only if they bring the end at least 5 %
nearer, the time of the change included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jobs.scheduler.proposal import Effect, Proposal

RULE = "deadline"
SUBJECT = "deadline"


@dataclass(frozen=True)
class DeadlineFacts:
    """A running job against its deadline. Times in seconds, prices in USD."""

    step: int
    steps_left: int
    time_left_s: float  # until the deadline; negative if it has passed
    num_workers: int
    min_workers: int
    max_workers: int
    step_time_s: float  # at the present size, over the last steps
    step_time_fast_s: float  # the faster of that and the mean pace: the job is late only if it is by both
    measured_s: Mapping[int, float] = field(default_factory=dict)  # workers -> step time that an attempt showed
    changeover_s: float = 60.0  # from the last step before a resize to the first after it
    since_resize_s: float = float("inf")
    steps_at_size: int = 0
    usd_per_worker_hour: float = 0.0


@dataclass(frozen=True)
class Settings:
    serial_share: float = 0.1  # of a step that more workers do not shorten, where nothing was measured
    margin: float = 0.05  # of the time left that is kept in hand
    min_gain: float = 0.05  # of the time to the end
    min_steps: int = 20  # at the present size, before its pace is believed
    cool_down_s: float = 600.0


def propose(facts: DeadlineFacts, settings: Settings | None = None) -> list[Proposal]:
    """One `resize`, or nothing: in time, too little known, just resized, or nothing would help."""
    settings = settings or Settings()
    known = facts.steps_at_size >= settings.min_steps and facts.since_resize_s >= settings.cool_down_s
    late = facts.steps_left > 0 and facts.steps_left * facts.step_time_fast_s > facts.time_left_s
    size = _size(facts, settings) if known and late else None
    return [] if size is None else [_resize(facts, settings, size)]


def finish_in_s(facts: DeadlineFacts, size: int, settings: Settings) -> float:
    """Seconds until the last step with `size` workers from now on, changeover included."""
    changeover_s = 0.0 if size == facts.num_workers else facts.changeover_s
    return changeover_s + facts.steps_left * step_time_s(facts, size, settings)


def step_time_s(facts: DeadlineFacts, size: int, settings: Settings) -> float:
    """Step time with `size` workers: the present pace, a measured one, or Amdahl's law."""
    if size == facts.num_workers:
        return facts.step_time_s
    if size in facts.measured_s:
        return facts.measured_s[size]
    shrinks = 1 - settings.serial_share
    return facts.step_time_s * (settings.serial_share + shrinks * facts.num_workers / size)


def _size(facts: DeadlineFacts, settings: Settings) -> int | None:
    """The fewest workers in time, else those that finish first; None if that is not 5 % better than now."""
    larger = range(facts.num_workers + 1, facts.max_workers + 1)
    ends = {size: finish_in_s(facts, size, settings) for size in larger}
    in_time = [size for size, end_s in ends.items() if end_s <= facts.time_left_s * (1 - settings.margin)]
    size = in_time[0] if in_time else min(ends, key=lambda n: ends[n], default=None)
    now_s = finish_in_s(facts, facts.num_workers, settings)
    return size if size is not None and ends[size] <= now_s * (1 - settings.min_gain) else None


def _resize(facts: DeadlineFacts, settings: Settings, size: int) -> Proposal:
    late_s = facts.steps_left * facts.step_time_s - facts.time_left_s
    before_s, after_s = finish_in_s(facts, facts.num_workers, settings), finish_in_s(facts, size, settings)
    measured = size in facts.measured_s
    slack = 0.1 if measured else 0.3
    gain_s = before_s - after_s
    usd = facts.usd_per_worker_hour * (size * after_s - facts.num_workers * before_s) / 3600
    in_time = after_s <= facts.time_left_s
    how = "measured" if measured else "expected by Amdahl's law"
    still = "" if in_time else f" Even so it will be {_span(after_s - facts.time_left_s)} late."
    return Proposal(
        rule=RULE,
        kind="resize",
        subject=SUBJECT,
        direction="forward",
        sentence=(
            f"{size} workers instead of {facts.num_workers}: at {facts.step_time_s:.2f} s a step the deadline is missed by "
            f"{_span(late_s)}; with {size} a step takes {step_time_s(facts, size, settings):.2f} s ({how}).{still}"
        ),
        args={"action": "resize", "num_workers": size},
        allowed={"num_workers": {"min": facts.min_workers, "max": facts.max_workers, "integer": True}},
        evidence=_evidence(facts, late_s),
        delta_eta_s=Effect(-gain_s, -gain_s * (1 + slack), -gain_s * (1 - slack)),
        delta_cost_usd=Effect(usd, usd - slack * abs(usd), usd + slack * abs(usd)),
        confidence=(0.9 if measured else 0.7) if in_time else 0.5,
        price_usd=max(0.0, usd),
        expires_after_s=max(300.0, min(3600.0, facts.time_left_s)),
    )


def _evidence(facts: DeadlineFacts, late_s: float) -> dict[str, Any]:
    return {
        "step": facts.step,
        "steps_left": facts.steps_left,
        "time_left_s": round(facts.time_left_s, 1),
        "late_s": round(late_s, 1),
        "step_time_s": round(facts.step_time_s, 4),
        "step_time_fast_s": round(facts.step_time_fast_s, 4),
        "measured_s": {str(size): round(time_s, 4) for size, time_s in facts.measured_s.items()},
        "changeover_s": round(facts.changeover_s, 1),
    }


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
