"""Completion: how far a running job is from its target, kept beside its signals, and its end when it gets there."""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from jobs.models import Directive, Job, SignalState
from jobs.scheduler.completion import MIN_POINTS, Completion, completion_of, loss_fit
from jobs.selectors.loss_curves import GOAL_STEPS, held_out_curve, loss_curve
from jobs.selectors.progress import newest_attempts
from jobs.services.directives import directive_issue
from jobs.services.events import event_append


def completion_update(*, job: Job, now: dt.datetime) -> Completion:
    """Fit the job's curve, keep what it says, and let the trainer finish where the target is reached.

    The curve is that of the held-out samples where there are enough evaluations for a fit, else that of the training. A job that is
    evaluated has reached its target when its newest evaluation has.
    """
    held_out, training = held_out_curve(job), loss_curve(job)
    is_evaluated = len(held_out.loss) > 0
    curve = held_out if len(held_out.loss) >= MIN_POINTS else training
    fit = loss_fit(curve.steps, curve.loss, curve.tokens)
    found = completion_of(fit, step=job.current_step, budget=job.goal_steps, target=job.goal_loss)
    SignalState.objects.filter(job=job).update(completion=found.as_json())
    newest = float(held_out.loss[-1]) if is_evaluated else training.newest_loss()
    if job.goal_loss is not None and newest is not None and newest <= job.goal_loss:
        over = "on the held-out samples" if is_evaluated else f"over the last {GOAL_STEPS} steps"
        _finish(job, f"target loss {job.goal_loss:.4g} reached: {newest:.4g} {over}", newest, now)
    return found


@transaction.atomic
def _finish(job: Job, reason: str, loss: float, now: dt.datetime) -> None:
    """Tell the trainer of the newest attempt, once, to save, export and end as done."""
    attempt = newest_attempts(jobs=[job]).get(job.pk)
    if attempt is None or attempt.status != "running":
        return
    told = Directive.objects.filter(attempt=attempt, action="stop", args__outcome="done")
    if told.exclude(status__in=("refused", "expired")).exists():
        return
    directive_issue(attempt=attempt, action="stop", args={"outcome": "done", "reason": reason}, now=now)
    text = f"{job.name}: {reason}, at step {job.current_step:,} of {job.goal_steps:,}. The trainer saves and ends."
    event_append(
        team=job.team, job=job, kind="job.goal_reached", subject=job, now=now, text=text,
        data={"loss": round(loss, 6), "target": job.goal_loss, "step": job.current_step},
    )  # fmt: skip
