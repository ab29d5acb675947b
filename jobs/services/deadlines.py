"""Deadlines: what cannot be kept is refused before it is paid for, and what was missed is said once."""

from __future__ import annotations

import datetime as dt

from django.db import transaction

from jobs.errors import Invalid
from jobs.machines import declared_size
from jobs.models import Job, PlanState
from jobs.scheduler.procurement import ASK_KIND, RULE
from jobs.scheduler.speed import Speed
from jobs.selectors.plans import past_paces_s
from jobs.services.events import event_append
from jobs.services.plan_waits import no_words
from jobs.states import JOB_ACTIVE


def deadline_check(*, job: Job, now: dt.datetime) -> None:
    """Raise `Invalid` for a deadline that has passed, or that the steps left cannot meet at the best pace known.

    Known is a pace that the job file declares (`goal.step_time_s`), that earlier attempts with the same settings showed, or that a
    planned job has itself. Where nothing is known nothing is refused.
    """
    if job.deadline is None:
        return
    if job.deadline <= now:
        raise Invalid(
            f"The deadline of {job.name} has passed.",
            fields={"deadline": [f"It was {job.deadline:%Y-%m-%d %H:%M} UTC; create the job anew with a later one."]},
        )
    pace_s, _, whose = best_pace(job)
    steps_left, left_s = job.goal_steps - job.current_step, (job.deadline - now).total_seconds()
    if pace_s is not None and steps_left * pace_s > left_s:
        needed_h, left_h = steps_left * pace_s / 3600, left_s / 3600
        hint = (
            f"{steps_left:,} steps at {pace_s:.3g} s ({whose}) take {needed_h:.2f} h, and {left_h:.2f} h are left. At most "
            f"{int(left_s / pace_s):,} steps fit; ask for fewer steps, more workers or a later deadline."
        )
        raise Invalid(f"{job.name} cannot meet its deadline.", fields={"deadline": [hint]})


def best_pace(job: Job) -> tuple[float | None, int, str]:
    """The shortest step known with the most workers, in seconds, the number of these, and whose word it is."""
    words, size = "the fastest of earlier attempts with these settings", job.num_workers
    known = [(pace, size, words) for pace in past_paces_s(job=job)]
    declared = (job.config.get("goal") or {}).get("step_time_s")
    if declared:
        known.append((float(declared), declared_size(job), "as the job file says"))
    plan = PlanState.objects.filter(job=job).values_list("plan", flat=True).first() or {}
    if plan.get("step_time_1_s"):
        most = plan["limits"]["n_max"]
        speed = Speed(float(plan["step_time_1_s"]), float(plan["serial_share"]))
        known.append((speed.step_time_s(most), most, f"its own pace, on {most} machines"))
    return min(known) if known else (None, size, "")


def deadlines_sweep(*, now: dt.datetime) -> int:
    """Say of each active job whose deadline has passed that it has, once. The job goes on. Returns how many."""
    missed = Job.objects.filter(status__in=JOB_ACTIVE, deadline__lte=now, deadline_passed_at=None)
    return sum(_tell_passed(job, now) for job in missed.select_related("team"))


def _tell_passed(job: Job, now: dt.datetime) -> bool:
    with transaction.atomic():
        won = Job.objects.filter(pk=job.pk, deadline_passed_at=None, status__in=JOB_ACTIVE).update(
            deadline_passed_at=now
        )
        if won:
            left, why = job.goal_steps - job.current_step, late_words(job)
            event_append(
                team=job.team,
                job=job,
                kind="job.deadline_passed",
                subject=job,
                now=now,
                text=f"The deadline of {job.name} has passed with {left:,} of {job.goal_steps:,} steps left; it goes on"
                f"{': ' + why if why else ''}.",
                data={
                    "deadline": job.deadline.isoformat() if job.deadline else None,
                    "current_step": job.current_step,
                    "why": why,
                },
            )
    return won == 1


def late_words(job: Job) -> str:
    """What a planned job lacks as its deadline passes; where it lacks nothing by now, who refused it on-demand. Else empty."""
    words = PlanState.objects.filter(job=job).values_list("waits_for", flat=True).first()
    if words is None or words:
        return words or ""
    asked = (
        job.decisions.filter(rule=RULE, kind=ASK_KIND, status="rejected").select_related("team").order_by("-id").first()
    )
    if asked is None:
        return ""
    no = asked.approvals.filter(answer="reject", void_at=None).select_related("user").first()
    return no_words(asked, no.user if no is not None else None)
