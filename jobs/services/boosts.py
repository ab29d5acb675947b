"""Boosts: points that a person or a rule's decision puts on top of a job's priority, or takes from it."""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from jobs.errors import Conflict, Invalid
from jobs.machines import is_planned
from jobs.models import Job
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.plans import plan_ask
from jobs.states import JOB_OVER

MAX_POINTS = 100


@transaction.atomic
def job_boost(*, job: Job, points: int, reason: str, now: dt.datetime, actor: Actor = SYSTEM) -> Job:
    """Set the job's boost (negative: demoted, 0: neither) and have a planned job planned anew. Harmless to repeat.

    Raises `Invalid` for points out of range or without a reason, `Conflict` for a job that is over.
    """
    reason = reason.strip()
    if not -MAX_POINTS <= points <= MAX_POINTS:
        hint = f"From -{MAX_POINTS} to {MAX_POINTS}; 0 takes a boost back."
        raise Invalid("That is not a boost.", fields={"points": [hint]})
    if points and not reason:
        raise Invalid("Say why: the queue shows it to everybody.", fields={"reason": ["Give a reason."]})
    job = Job.objects.select_for_update().select_related("team", "dataset").get(pk=job.pk)
    if job.status in JOB_OVER:
        raise Conflict(f"{job.name} is {job.status}: it waits for nothing any more.", status=job.status)
    if (job.boost, job.boost_reason) == (points, reason[:300]):
        return job
    job.boost, job.boost_reason = points, reason[:300]
    job.save(update_fields=["boost", "boost_reason"])
    kind = "boosted" if points > 0 else "demoted" if points < 0 else "boost_ended"
    what = f"{kind} by {abs(points)}" if points else "neither boosted nor demoted any more"
    text = f"{job.name} is {what}{f': {reason}' if reason else '.'}"
    event_append(
        team=job.team,
        job=job,
        kind=f"job.{kind}",
        subject=job,
        now=now,
        actor=actor,
        text=text,
        data={"points": points},
    )
    if is_planned(job) and job.status != "draft":
        plan_ask(job=job, now=now, why="Its priority was changed.")
    return job
