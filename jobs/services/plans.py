"""Plans: asked for, made by the epoch, stored."""

from __future__ import annotations

import datetime as dt

from jobs.models import Job, PlanState


def plan_ask(*, job: Job, now: dt.datetime, why: str) -> None:
    """Have a job planned at once and not only at its regular time. Harmless to repeat; the first reason stays."""
    state, is_new = PlanState.objects.get_or_create(job=job, defaults={"due_at": now, "why": why[:200]})
    if not is_new:
        PlanState.objects.filter(pk=state.pk, due_at__gt=now).update(due_at=now, why=why[:200])
