"""Jobs: created, submitted, held, ended."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from django.db import transaction

from jobs.clusters import backends
from jobs.errors import Conflict, Invalid, StaleWrite
from jobs.models import Dataset, Job, JobShard
from jobs.scheduler.priority import MAX_PRIORITY
from jobs.selectors.promises import job_promises
from jobs.services.budgets import budget_check
from jobs.services.commands import command_issue
from jobs.services.deadlines import deadline_check
from jobs.services.decisions import decisions_close
from jobs.services.duds import hold_lift
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.goals import goal_in_steps
from jobs.services.job_settings import job_file_checked, snapshot_settings, training_checked
from jobs.services.methods import forms_check
from jobs.services.pauses import pause_begin, pause_lift
from jobs.services.spot_snapshots import interval_checked
from jobs.services.transitions import state_move
from jobs.states import JOB_OVER

if TYPE_CHECKING:
    from django.contrib.auth.models import User


@transaction.atomic
def job_create(
    *,
    dataset: Dataset,
    name: str,
    model: str,
    now: dt.datetime,
    goal_steps: int | None = None,
    goal_epochs: float | None = None,
    user: User | None = None,
    deadline: dt.datetime | None = None,
    budget_usd: Any = None,
    priority: int = 0,
    backend: str = "",
    num_workers: int = 1,
    goal_loss: float | None = None,
    training: dict[str, Any] | None = None,
    weights: dict[str, float] | None = None,
    config: dict[str, Any] | None = None,
) -> Job:
    """A draft. Each shard enters with its newest revision; `weights` (by shard key) overrides the dataset's weights.

    Its end is `goal_steps`, or as many steps as `goal_epochs` take with the samples that the dataset holds now.
    """
    config, backend = config or {}, backend or backends()[0]
    settings = training_checked({**snapshot_settings(config), **(training or {})})
    job_file_checked(config, settings, backend)
    goal_steps, said = goal_in_steps(dataset=dataset, steps=goal_steps, epochs=goal_epochs, training=settings)
    settings, corrected = interval_checked(config=config, training=settings, goal_steps=goal_steps)
    _check_job(name, model, goal_steps, num_workers, backend, deadline, priority, now, settings)
    job = Job.objects.create(
        team=dataset.team,
        dataset=dataset,
        name=name.strip(),
        model=model.strip(),
        goal_steps=goal_steps,
        goal_loss=goal_loss,
        deadline=deadline,
        budget_usd=budget_usd,
        priority=priority,
        backend=backend,
        num_workers=num_workers,
        training=settings,
        config=config,
        created_by=user,
        status="draft",
        created_at=now,
        status_at=now,
    )
    _take_shards(job, weights or {})
    actor = Actor.person(user) if user else SYSTEM
    text = " ".join(filter(None, (f"Job {job.name} created.", said, corrected)))
    event_append(team=job.team, job=job, kind="job.created", subject=job, now=now, actor=actor, text=text)
    return job


def _check_job(
    name: str,
    model: str,
    goal_steps: int,
    num_workers: int,
    backend: str,
    deadline: dt.datetime | None,
    priority: int,
    now: dt.datetime,
    training: dict[str, Any],
) -> None:
    errors: dict[str, list[str]] = {}
    if not name.strip():
        errors["name"] = ["Give the job a name."]
    if not model.strip():
        errors["model"] = ["Name a model: a path, a hub id, or tiny:4m."]
    if not 1 <= goal_steps <= 100_000_000:
        errors["goal_steps"] = ["From 1 to 100,000,000 steps."]
    if not 1 <= num_workers <= 4096:
        errors["num_workers"] = ["From 1 to 4,096 workers."]
    elif training["global_batch"] < num_workers:
        errors["num_workers"] = [f"At most one worker per sample: the global batch has {training['global_batch']}."]
    if backend not in backends():
        errors["backend"] = [f"One of {', '.join(backends())}. More are offered by COUNTERFLOW_BACKENDS."]
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        errors["priority"] = [f"From -{MAX_PRIORITY:,} to {MAX_PRIORITY:,}."]
    if deadline is not None and deadline <= now:
        errors["deadline"] = ["The deadline has passed already."]
    if errors:
        raise Invalid("The job cannot be accepted.", fields=errors)


def _take_shards(job: Job, weights: dict[str, float]) -> None:
    shards = list(job.dataset.shards.order_by("category", "key").prefetch_related("revisions"))
    unknown = sorted(set(weights) - {s.key for s in shards})
    bad = sorted(k for k, w in weights.items() if not isinstance(w, int | float) or not 0 <= w <= 1e6)
    if unknown or bad:
        raise Invalid(
            "The weights do not fit the dataset.",
            fields={"weights": [f"Unknown: {', '.join(unknown)}." if unknown else f"From 0: {', '.join(bad)}."]},
        )
    rows: list[JobShard] = []
    for shard in shards:
        newest = max(shard.revisions.all(), key=lambda r: r.number, default=None)
        if newest is None or not newest.num_samples:
            continue
        rows.append(
            JobShard(
                job=job,
                shard=shard,
                revision=newest,
                index=len(rows),
                weight=weights.get(shard.key, shard.weight),
                hardness_score=shard.hardness_score,
            )
        )
    forms_check(job, rows)
    if not rows:
        raise Invalid(
            f"Dataset {job.dataset.name} holds no samples yet.",
            fields={"dataset": ["Upload at least one shard first."]},
        )
    if not any(row.weight > 0 for row in rows):
        raise Invalid("Every shard has weight 0.", fields={"weights": ["Give at least one shard a positive weight."]})
    JobShard.objects.bulk_create(rows)


def job_submit(*, job: Job, now: dt.datetime, actor: Actor = SYSTEM) -> Job:
    """Queue a draft and order its launch; what it promises stands in its history.

    Raises `Invalid` for a deadline that cannot be met, a budget that cannot pay, spot without snapshots.
    """
    deadline_check(job=job, now=now)
    budget_check(job=job, now=now)
    interval_checked(config=job.config, training=job.training, goal_steps=job.goal_steps)
    text = " ".join([f"{job.name} submitted.", *job_promises(job=job)])
    with transaction.atomic():
        state_move(job, "queued", now=now, actor=actor, submitted_at=now, text=text)
        command_issue(job=job, kind="launch", key=f"launch:{job.uuid}:1", now=now, actor=actor)
    return job


def job_cancel(*, job: Job, now: dt.datetime, actor: Actor, reason: str = "") -> Job:
    """End a job. Its processes are stopped by a command; quota is free when they have gone."""
    if job.status in JOB_OVER:
        raise Conflict(f"{job.name} is already {job.status}.", status=job.status)
    job_end(job=job, to="cancelled", now=now, actor=actor, message=reason)
    return job


def job_pause(*, job: Job, now: dt.datetime, actor: Actor) -> Job:
    """Hold the trainer at its next control point. Nothing is started for the job until it is let go on."""
    pause_begin(job=job, now=now, actor=actor)
    return job


def job_resume(*, job: Job, now: dt.datetime, actor: Actor) -> Job:
    """Let a held job go on, or buy machines again for a job that was held after machines without a word."""
    if hold_lift(job=job, now=now, actor=actor) and job.status != "paused":
        return job
    if job.status != "paused":
        raise Conflict(f"{job.name} is {job.status}, not paused.", status=job.status)
    pause_lift(job=job, now=now, actor=actor)
    return job


def job_end(
    *,
    job: Job,
    to: str,
    now: dt.datetime,
    actor: Actor = SYSTEM,
    failure_class: str = "",
    message: str = "",
) -> None:
    """Move a job to its last state, close its open decisions, order the stop of what still runs, and order its report."""
    try:
        with transaction.atomic():
            state_move(
                job,
                to,
                now=now,
                actor=actor,
                ended_at=now,
                failure_class=failure_class,
                failure_message="" if to == "succeeded" else message,
                text=f"{job.name} {to}" + (f": {message}" if message else "."),
            )
            decisions_close(job=job, now=now, reason=f"The job is {to}.")
            live = job.attempts.filter(status__in=("starting", "running")).order_by("-fence").first()
            if live is not None:
                command_issue(
                    job=job,
                    kind="stop",
                    key=f"stop:{live.uuid}",
                    args={"attempt": str(live.uuid)},
                    queue="urgent",
                    now=now,
                )
            command_issue(job=job, kind="write_report", key=f"report:{job.uuid}", now=now)
    except StaleWrite:
        job.refresh_from_db()
        if job.status not in JOB_OVER:
            raise
