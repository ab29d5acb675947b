"""Plans are asked for here, taken by one epoch in `plan_claims.py`, and what it finds is stored by `epochs.py`."""

from __future__ import annotations

import datetime as dt

from django.db.models import Case, Count, F, Max, Q, QuerySet, Value, When

from jobs.models import Job, PlanState, Team
from jobs.models.plans import MAY_COME
from jobs.selectors.quotas import TO_PLAN

PACE_MOVE = 0.3  # a step time that is off by such a share is news
PACE_CHANGED = "Its pace has changed."
FIRST = "Its first plan."
ROOM = "Machines of the team have ended."
APPROVED = "Its machines were approved."  # and ordered with it
FIXED_WAITS = "A job of fixed size waits for the quota."
PRICE_MOVED = "The price of what was asked has moved."
# Reasons that are none to change machines in haste.
CALM = ("", FIRST, PACE_CHANGED, ROOM, FIXED_WAITS, APPROVED, PRICE_MOVED)
MAX_ASKED = 8  # that wait for room are planned at once; the others at their time


def shortened(words: str, length: int) -> str:
    """At most so many characters, with a mark where some are left out."""
    return words if len(words) <= length else words[: length - 1].rstrip() + "…"


def plan_ask(*, job: Job, now: dt.datetime, why: str) -> None:
    """Have a job planned at once and not only at its regular time. Harmless to repeat.

    The first reason that cannot wait stays; a calm one gives way to it, also where the job is due already or being planned.
    """
    _, is_new = PlanState.objects.get_or_create(job=job, defaults={"due_at": now, "why": shortened(why, 200)})
    if not is_new:
        _ask(PlanState.objects.filter(job=job), now, shortened(why, 200))


def _ask(rows: QuerySet[PlanState], now: dt.datetime, why: str) -> None:
    """One statement. A job whose last plan failed is not hurried by what can wait."""
    is_calm = why in CALM
    hurried = Q(due_at__gt=now) & (Q(num_failures=0) | Q(claim__isnull=False) if is_calm else Q())
    gives_way = Q(why="") if is_calm else Q(why__in=CALM)
    rows.filter(hurried | gives_way).update(
        due_at=Case(When(hurried, then=Value(now)), default=F("due_at")),
        why=Case(When(gives_way, then=Value(why)), default=F("why")),
    )


def plans_ask_waiting(*, team: Team, now: dt.datetime) -> None:
    """Machines have ended: those that wait for room and come first are planned at once."""
    waiting = PlanState.objects.filter(waits_on__in=MAY_COME, job__team=team, job__status__in=TO_PLAN, due_at__gt=now)
    first = list(waiting.order_by("-priority", "job__submitted_at", "pk").values_list("pk", flat=True)[:MAX_ASKED])
    if first:
        _ask(PlanState.objects.filter(pk__in=first), now, ROOM)


def plans_look_for_fixed(*, team: Team, since: dt.datetime, now: dt.datetime) -> bool:
    """Whether the team has planned jobs, whose epoch finds room for a job of fixed size.

    It is held at once for one that waits `since` a moment after the last plan of all of them.
    """
    rows = PlanState.objects.filter(job__team=team, job__status__in=TO_PLAN)
    asked = Count("pk", filter=Q(claim__isnull=False, taken=FIXED_WAITS))
    found = rows.aggregate(
        newest=Max("planned_at"), first=Max("pk", filter=Q(num_failures=0)), asked=asked, num=Count("pk")
    )
    if found["first"] and found["newest"] is not None and found["newest"] < since and not found["asked"]:
        _ask(rows.filter(pk=found["first"]), now, FIXED_WAITS)
    return bool(found["num"])


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
