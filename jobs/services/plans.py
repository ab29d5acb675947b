"""Plans: asked for, due, claimed by one epoch. What the epoch finds is stored by `jobs/services/epochs.py`."""

from __future__ import annotations

import datetime as dt

from jobs.models import Job, PlanState, Team
from jobs.models.plans import MAY_COME
from jobs.selectors.quotas import TO_PLAN

PACE_MOVE = 0.3  # a step time that is off by such a share is news
PACE_CHANGED = "Its pace has changed."
FIRST = "Its first plan."
ROOM = "Machines of the team have ended."
APPROVED = "Its machines were approved."  # and ordered with it
PRICE_MOVED = "The price of what was asked has moved."
CALM = ("", FIRST, PACE_CHANGED, ROOM, APPROVED, PRICE_MOVED)  # reasons that are none to change machines in haste
MAX_ASKED = 8  # that wait for room are planned at once; the others at their time


def plan_ask(*, job: Job, now: dt.datetime, why: str) -> None:
    """Have a job planned at once and not only at its regular time. Harmless to repeat; the first reason stays."""
    state, is_new = PlanState.objects.get_or_create(job=job, defaults={"due_at": now, "why": why[:200]})
    if not is_new:
        PlanState.objects.filter(pk=state.pk, due_at__gt=now).update(due_at=now, why=why[:200])


def plans_ask_waiting(*, team: Team, now: dt.datetime) -> None:
    """Machines have ended: those that wait for room and come first are planned at once."""
    waiting = PlanState.objects.filter(waits_on__in=MAY_COME, job__team=team, job__status__in=TO_PLAN, due_at__gt=now)
    first = list(waiting.order_by("-priority", "job__submitted_at", "pk").values_list("pk", flat=True)[:MAX_ASKED])
    if first:
        PlanState.objects.filter(pk__in=first, due_at__gt=now).update(due_at=now, why=ROOM)


def plan_change_noted(*, job: Job, now: dt.datetime) -> None:
    """Other machines were ordered for the job, by whomever: the next change waits for a while."""
    PlanState.objects.filter(job=job).update(changed_at=now)


def pace_check(*, job: Job, step_time_s: float, now: dt.datetime) -> None:
    """Ask for a plan where the pace is not what the last plan counted on."""
    plan = PlanState.objects.filter(job=job, planned_at__isnull=False).values_list("plan", flat=True).first()
    if plan is None:
        return
    known = plan.get("step_time_s")
    if known is None or abs(step_time_s / known - 1) > PACE_MOVE:
        plan_ask(job=job, now=now, why=PACE_CHANGED)


def plans_claim(*, ids: list[int], now: dt.datetime, every_s: float) -> dict[int, str]:
    """Take the jobs that are due: job id -> why it was asked for. Their next regular time is set at once.

    So whoever asks while the epoch is at work makes the job due again and is not forgotten.
    """
    known = dict(PlanState.objects.filter(job__in=ids).values_list("job_id", "due_at"))
    missing = [PlanState(job_id=pk, due_at=now, why=FIRST) for pk in ids if pk not in known]
    PlanState.objects.bulk_create(missing, ignore_conflicts=True)
    due = dict(PlanState.objects.filter(job__in=ids, due_at__lte=now).values_list("job_id", "why"))
    PlanState.objects.filter(job__in=due, due_at__lte=now).update(due_at=now + dt.timedelta(seconds=every_s), why="")
    return due
