"""A job's deadline, budget and limits on machines changed after it was written, by a person, with a plan at once."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from django.db import transaction

from jobs.errors import Conflict, Invalid
from jobs.machines import is_planned
from jobs.models import Job
from jobs.services.budgets import budget_check
from jobs.services.deadlines import deadline_check
from jobs.services.events import Actor, event_append
from jobs.services.plans import plan_ask
from jobs.services.resources import resource_errors
from jobs.states import JOB_OVER

OWN = ("deadline", "budget_usd")
RESOURCES = ("max_price", "regions", "policy")  # of the job file's `resources`
WORDS = {"budget_usd": "budget", "max_price": "price at most"}


@transaction.atomic
def job_change(*, job: Job, changes: dict[str, Any], now: dt.datetime, actor: Actor) -> Job:
    """Set what `changes` names; None takes a limit away. A job that runs is planned anew at once.

    Raises `Conflict` for a job that is over, `Invalid` with numbers for what cannot be: a deadline that the steps left cannot meet,
    a budget below what is spent, machines that nobody offers.
    """
    job = Job.objects.select_for_update().select_related("team").get(pk=job.pk)
    if job.status in JOB_OVER:
        raise Conflict(f"{job.name} is already {job.status}.", status=job.status)
    before = {name: _value(job, name) for name in (*OWN, *RESOURCES)}
    _set(job, changes)
    changed = {name: (before[name], _value(job, name)) for name in changes if before[name] != _value(job, name)}
    if not changed:
        return job
    _check(job, changed, now)
    if "deadline" in changed:
        job.deadline_passed_at = None  # a new deadline may be missed anew
    Job.objects.filter(pk=job.pk).update(
        deadline=job.deadline, budget_usd=job.budget_usd, config=job.config, deadline_passed_at=job.deadline_passed_at
    )
    told = [f"{WORDS.get(name, name)} {_words(old)} -> {_words(new)}" for name, (old, new) in changed.items()]
    text, data = (
        f"{job.name} changed: {', '.join(told)}.",
        {n: [_plain(v) for v in pair] for n, pair in changed.items()},
    )
    event_append(team=job.team, job=job, kind="job.changed", subject=job, now=now, actor=actor, text=text, data=data)
    if is_planned(job) and job.status != "draft":
        plan_ask(job=job, now=now, why=f"New {', '.join(WORDS.get(name, name) for name in changed)}.")
    return job


def _set(job: Job, changes: dict[str, Any]) -> None:
    for name in OWN:
        if name in changes:
            setattr(job, name, changes[name])
    resources = {**(job.config.get("resources") or {}), **{n: changes[n] for n in RESOURCES if n in changes}}
    kept = {name: value for name, value in resources.items() if value not in (None, [], "")}
    if kept != (job.config.get("resources") or {}):
        job.config = {**job.config, "resources": kept}


def _value(job: Job, name: str) -> Any:
    return getattr(job, name) if name in OWN else (job.config.get("resources") or {}).get(name)


def _check(job: Job, changed: dict[str, Any], now: dt.datetime) -> None:
    if any(name in changed for name in RESOURCES):
        errors = resource_errors(job.config.get("resources") or {}, job.backend)
        if errors:
            raise Invalid(f"{job.name} cannot be changed to that.", fields=errors)
    if "budget_usd" in changed:
        budget_check(job=job, now=now)
    if "deadline" in changed:
        deadline_check(job=job, now=now)


def _words(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dt.datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC" if value.second else f"{value:%Y-%m-%d %H:%M} UTC"
    return ", ".join(value) if isinstance(value, list) else str(value)


def _plain(value: Any) -> Any:
    """As it can stand in JSON."""
    return value.isoformat() if isinstance(value, dt.datetime) else str(value) if isinstance(value, Decimal) else value
