"""Completion: how far a running job is from its target, kept beside its signals, and its end when it gets there."""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from jobs.models import Directive, Job, SignalState
from jobs.scheduler.completion import Completion, completion_of, loss_fit
from jobs.selectors.loss_curves import GOAL_STEPS, loss_curve
from jobs.selectors.progress import newest_attempts
from jobs.services.directives import directive_issue
from jobs.services.events import event_append


def completion_update(*, job: Job, now: dt.datetime) -> Completion:
    """Fit the job's curve, keep what it says, and let the trainer finish where the target is reached."""
    curve = loss_curve(job)
    fit = loss_fit(curve.steps, curve.loss, curve.tokens)
    found = completion_of(fit, step=job.current_step, budget=job.goal_steps, target=job.goal_loss)
    SignalState.objects.filter(job=job).update(completion=found.as_json())
    newest = curve.newest_loss()
    if job.goal_loss is not None and newest is not None and newest <= job.goal_loss:
        _finish(job, newest, now)
    return found


@transaction.atomic
def _finish(job: Job, loss: float, now: dt.datetime) -> None:
    """Tell the trainer of the newest attempt, once, to save, export and end as done."""
    attempt = newest_attempts(jobs=[job]).get(job.pk)
    if attempt is None or attempt.status != "running":
        return
    told = Directive.objects.filter(attempt=attempt, action="stop", args__outcome="done")
    if told.exclude(status__in=("refused", "expired")).exists():
        return
    reason = f"target loss {job.goal_loss:.4g} reached: {loss:.4g} over the last {GOAL_STEPS} steps"
    directive_issue(attempt=attempt, action="stop", args={"outcome": "done", "reason": reason}, now=now)
    text = f"{job.name}: {reason}, at step {job.current_step:,} of {job.goal_steps:,}. The trainer saves and ends."
    event_append(
        team=job.team, job=job, kind="job.goal_reached", subject=job, now=now, text=text,
        data={"loss": round(loss, 6), "target": job.goal_loss, "step": job.current_step},
    )  # fmt: skip
