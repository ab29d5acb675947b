"""The planner's tick: every few seconds the jobs that are due are planned, which for most ticks is none."""

from __future__ import annotations

from django.utils import timezone

from jobs.epoch import plans_tick
from workers.celery_app import app
from workers.periodic import once_per_slot


@app.task(name="workers.plans")
@once_per_slot("plans")
def plans() -> None:
    """Plan what is due. It goes to the control queue: a large epoch must not keep the clock from watching."""
    plans_tick(now=timezone.now())
