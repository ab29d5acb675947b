"""Decisions on the axes of a job, of steps and of time."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from jobs.models import Decision, Directive, Job

OPEN = ("proposed", "approved", "executing")
MOST = 200
MOST_MOMENTS = 100


@dataclass(frozen=True)
class Mark:
    """A decision at the step where it took effect, or at the newest step while it is open."""

    decision: Decision
    step: int
    is_open: bool
    brings_data: bool  # augmented samples came in at this step


def marks_of(job: Job) -> list[Mark]:
    """Decisions that took effect or are open, by step; the newest 200."""
    decisions = list(Decision.objects.filter(job=job).order_by("-id")[:MOST])
    brought = set(
        Directive.objects.filter(attempt__job=job, action="add_shard", status="applied").values_list(
            "decision_id", flat=True
        )
    )
    marks: list[Mark] = []
    for decision in decisions:
        if decision.applied_step is not None:
            marks.append(Mark(decision, decision.applied_step, False, decision.pk in brought))
        elif decision.status in OPEN:
            marks.append(Mark(decision, job.current_step, True, False))
    return sorted(marks, key=lambda m: (m.step, m.decision.pk))


@dataclass(frozen=True)
class Moment:
    """A decision when it was carried out, else when it was proposed. `is_mute`: nothing came of it."""

    decision: Decision
    at: dt.datetime
    is_open: bool
    is_mute: bool


def moments_of(job: Job) -> list[Moment]:
    """The newest 100 decisions of a job, by time."""
    rows = Decision.objects.filter(job=job).defer("situation", "evidence", "expected", "outcome")
    found = []
    for decision in rows.order_by("-id")[:MOST_MOMENTS]:
        is_open, done = decision.status in OPEN, decision.executed_at
        found.append(Moment(decision, done or decision.created_at, is_open, done is None and not is_open))
    return sorted(found, key=lambda one: (one.at, one.decision.pk))
