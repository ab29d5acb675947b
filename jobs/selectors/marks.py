"""Decisions on the step axis of a job."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.models import Decision, Directive, Job

OPEN = ("proposed", "approved", "executing")
MOST = 200


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
