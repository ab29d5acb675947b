"""Pauses: a job that is held stays held, whatever becomes of its attempts and machines, until it is let go on.

A trainer that runs holds at its next control point; a command that follows no order to hold is stopped. What leaves in the
meantime (its machine is taken, it failed, the budget is reached) has no successor before the job goes on; what was on its way
holds, or is stopped, as soon as it has started.
"""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from jobs.errors import Conflict
from jobs.machines import is_planned
from jobs.models import Attempt, Command, Job
from jobs.selectors.graces import job_grace_s
from jobs.selectors.pauses import can_hold, plain_commands
from jobs.selectors.spending import spending_of
from jobs.services.commands import command_issue
from jobs.services.directives import directive_issue
from jobs.services.events import Actor, event_append
from jobs.services.plans import plan_ask
from jobs.services.resizes import moves_nudge
from jobs.services.stops import stop_order
from jobs.services.transitions import state_move
from jobs.states import ATTEMPT_LIVE

NO_ORDERS = "its command follows no order to hold and is stopped: SIGTERM, {grace_s:g} s for what it saves by itself, then SIGKILL"


def living(job: Job) -> Attempt | None:
    """The newest attempt, if it is not over."""
    attempt: Attempt | None = job.attempts.filter(status__in=ATTEMPT_LIVE).order_by("-fence").first()
    return attempt


@transaction.atomic
def pause_begin(*, job: Job, now: dt.datetime, actor: Actor) -> None:
    """Hold the trainer at its next control point; nothing is started for the job until it is let go on."""
    attempt = living(job)
    stops = attempt is not None and attempt.status == "running" and not can_hold(attempt)
    text = f"{job.name} paused{f': {_no_orders(job)}' if stops else ''}."
    state_move(job, "paused", now=now, actor=actor, text=text, held_for="")
    if attempt is not None:
        pause_tell(attempt=attempt, now=now)


def pause_tell(*, attempt: Attempt, now: dt.datetime) -> None:
    """The trainer of a held job is told to hold, unless that is the last it was told; one that follows no such order is stopped.

    Harmless to repeat.
    """
    if attempt.status == "running" and not can_hold(attempt):
        plain_stop(attempt=attempt, now=now)
        return
    told = attempt.directives.filter(action__in=("pause", "resume")).order_by("-id").first()
    if told is None or told.action == "resume":
        directive_issue(attempt=attempt, action="pause", args={}, now=now)


def plain_stop(*, attempt: Attempt, now: dt.datetime) -> None:
    """Have what follows no order to hold ended by the grace rule; the next attempt begins where its own checkpoints let it."""
    why = f"The job was paused; {_no_orders(attempt.job)}."
    stop_order(attempt=attempt, reason=why, outcome="preempted", now=now)


def _no_orders(job: Job) -> str:
    return NO_ORDERS.format(grace_s=job_grace_s(job=job))


def pauses_enforce(*, now: dt.datetime) -> int:
    """Stop what runs on for held jobs and follows no order to hold. Returns how many were found."""
    found = plain_commands(now=now)
    for attempt in found:
        plain_stop(attempt=attempt, now=now)
    return len(found)


@transaction.atomic
def pause_lift(*, job: Job, now: dt.datetime, actor: Actor) -> None:
    """The trainer goes on; where none is left, the next attempt is ordered, and of a planned job a plan.

    Raises `Conflict` with the numbers for a job whose budget would stop it again at once.
    """
    if job.budget_usd is not None and not is_planned(job) and (one := spending_of(job=job, now=now)).must_leave:
        raise Conflict(f"{job.name} cannot go on: {one.words}. Give it more first.", status=job.status)
    attempt, text = living(job), f"{job.name} resumed."
    if attempt is not None and attempt.status == "running":
        state_move(job, "running", now=now, actor=actor, text=text, held_for="")
    else:
        to = "recovering" if job.started_at else "queued"
        state_move(job, to, now=now, actor=actor, text=text, held_for="")
    if attempt is not None:
        if attempt.directives.filter(action="pause").exists():
            directive_issue(attempt=attempt, action="resume", args={}, now=now)
    else:
        _launch(job, now)
    if is_planned(job):
        plan_ask(job=job, now=now, why="It was let go on.")


def _launch(job: Job, now: dt.datetime) -> None:
    launches = Command.objects.filter(job=job, kind="launch")
    if launches.filter(status__in=("issued", "claimed")).exists():
        moves_nudge(job_id=job.pk, now=now, kinds=("launch",))
        return
    key = f"launch:{job.uuid}:{job.attempts.count() + 1}:resumed:{launches.count()}"
    command_issue(job=job, kind="launch", key=key, now=now, queue="urgent")


def pause_outlives(*, job: Job, now: dt.datetime) -> None:
    """Say that the attempt of a held job is over and that none follows."""
    text = f"{job.name} is paused and has no attempt any more; the next one starts when it is let go on."
    event_append(team=job.team, job=job, kind="job.left", subject=job, now=now, text=text)


@transaction.atomic
def job_hold(*, job: Job, why: str, now: dt.datetime) -> None:
    """Pause a job for a reason of the system's own, and have what runs of it save, leave and cost no more. Harmless to repeat."""
    if job.status == "paused":
        Job.objects.filter(pk=job.pk, status="paused", held_for="").update(held_for=why[:300])
    else:
        state_move(job, "paused", now=now, text=f"{job.name} paused: {why}", held_for=why[:300])
    attempt = living(job)
    if attempt is not None:
        stop_order(attempt=attempt, reason=why, outcome="preempted", now=now)
