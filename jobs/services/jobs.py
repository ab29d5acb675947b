"""Jobs: created, submitted, held, ended."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from django.conf import settings as django_settings
from django.db import transaction

from jobs.clusters import backends
from jobs.errors import Conflict, Invalid, StaleWrite
from jobs.machines import SPOT_POLICIES
from jobs.models import Dataset, Job, JobShard
from jobs.providers import AWS, has_machines, planned_backend
from jobs.scheduler.rules import completion, shard_loss, straggler
from jobs.selectors.promises import job_promises
from jobs.services.budgets import budget_check
from jobs.services.commands import command_issue
from jobs.services.deadlines import deadline_check
from jobs.services.decisions import decisions_close
from jobs.services.duds import hold_lift
from jobs.services.events import SYSTEM, Actor, event_append
from jobs.services.methods import METHODS, forms_check, preference_errors
from jobs.services.pauses import pause_begin, pause_lift
from jobs.services.resources import resource_errors
from jobs.services.spot_snapshots import interval_checked
from jobs.services.transitions import state_move
from jobs.states import JOB_OVER

if TYPE_CHECKING:
    from django.contrib.auth.models import User

RULE_SETTINGS: dict[str, Any] = {
    shard_loss.RULE: shard_loss.Settings(),
    straggler.RULE: straggler.Settings(),
    completion.RULE: completion.Settings(),
}
TRAINING_DEFAULTS: dict[str, Any] = {
    "global_batch": 16,
    "micro_batch": 8,
    "lr": 1e-3,
    "seq_len": 128,
    "seed": 1,
    "lora": 0,
    "snapshot_every": 100,
    "export_every": 100,
}
# Name -> (lowest, highest, whole number).
TRAINING_RANGES: dict[str, tuple[float, float, bool]] = {
    "global_batch": (1, 1_000_000, True),
    "micro_batch": (1, 100_000, True),
    "lr": (1e-9, 10.0, False),
    "seq_len": (8, 1_048_576, True),
    "seed": (0, 2**63 - 1, True),
    "lora": (0, 1024, True),  # rank of the adapters, 0 for full fine-tuning
    "snapshot_every": (0, 10_000_000, True),
    "export_every": (1, 10_000_000, True),
    "eval_every": (0, 10_000_000, True),  # steps between looks at held-out samples, 0 for none
    "eval_fraction": (0, 0.9, False),  # of each shard that is held out
}
# Name -> what it may be; without one the launcher's own default holds.
TRAINING_CHOICES: dict[str, tuple[str, ...]] = {
    "parallel": ("ddp", "fsdp"),  # a copy of the model on each worker, or slices of it
    "method": METHODS,  # answers to imitate, or pairs of answers to prefer
    "layout": ("padded", "packed"),  # a row for each sample, or whole samples packed into rows
}
FIDELITIES = ("exact", "same_world")  # what a resize keeps bit by bit, the first by default: see docs/trainer.md


def training_checked(training: dict[str, Any]) -> dict[str, Any]:
    """Training settings with defaults filled in. Raises `Invalid` naming each bad one."""
    errors: dict[str, list[str]] = {}
    for name, value in training.items():
        if name in TRAINING_CHOICES:
            if value not in TRAINING_CHOICES[name]:
                errors[name] = [f"One of {', '.join(TRAINING_CHOICES[name])}."]
        elif name not in TRAINING_RANGES:
            errors[name] = [f"Unknown. Known: {', '.join((*TRAINING_RANGES, *TRAINING_CHOICES))}."]
        else:
            low, high, whole = TRAINING_RANGES[name]
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not low <= value <= high or (whole and value != int(value)):
                errors[name] = [f"A {'whole ' if whole else ''}number from {low:g} to {high:g}."]
    if not errors and training.get("eval_every") and not training.get("eval_fraction"):
        errors["eval_fraction"] = ["Say which share of each shard is held out for evaluation, as 0.1."]
    if errors:
        raise Invalid("The training settings cannot be used.", fields={f"training.{k}": v for k, v in errors.items()})
    return {**TRAINING_DEFAULTS, **training}


def snapshot_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Training settings that a job file gives in its own section."""
    every = (config.get("snapshot") or {}).get("check_every")
    return {} if every is None else {"snapshot_every": every}


def job_file_checked(config: dict[str, Any], training: dict[str, Any], backend: str = "local") -> None:
    """Raise `Invalid` for parts of a job file that could not be honoured here: nothing that was asked for is silently dropped."""
    errors: dict[str, list[str]] = {}
    resources = config.get("resources") or {}
    errors |= resource_errors(resources, backend)
    policies = SPOT_POLICIES if backend != "local" or (backend == planned_backend() and has_machines()) else ()
    if backend == AWS and resources.get("spot_policy") not in policies:
        errors["resources.spot_policy"] = [
            f"A job on {AWS} runs on machines that are bought for it: {', '.join(policies)}."
        ]
    elif resources.get("spot_policy") not in (None, "on-demand", "auto", *policies):
        known = f"{', '.join(policies)}, on-demand or auto" if policies else "on-demand or auto"
        errors["resources.spot_policy"] = [f"No machines of this policy can be had here: {known}."]
    if (config.get("snapshot") or {}).get("uri"):
        errors["snapshot.uri"] = [f"The {backend} backend keeps snapshots in the job's own folder; leave this out."]
    if (config.get("snapshot") or {}).get("fidelity", FIDELITIES[0]) not in FIDELITIES:
        errors["snapshot.fidelity"] = [f"One of {', '.join(FIDELITIES)}."]
    errors |= preference_errors(config, training)
    if not django_settings.ALLOW_JOB_COMMANDS:
        for name in ("env", "setup", "run"):
            if config.get(name):
                errors[name] = [
                    "This server runs no commands of job files; its operator sets COUNTERFLOW_ALLOW_JOB_COMMANDS=1."
                ]
    errors |= _rule_errors(config.get("rules") or {})
    if errors:
        raise Invalid("The job file asks for what cannot be done here.", fields=errors)


def _rule_errors(rules: Any) -> dict[str, list[str]]:
    """What is wrong with the thresholds that a job sets for its rules."""
    if not isinstance(rules, dict) or not all(isinstance(r, dict) for r in rules.values()):
        return {"rules": ["A mapping of rule name to thresholds, as {shard_loss: {min_gap: 0.4}}."]}
    errors: dict[str, list[str]] = {}
    for rule, thresholds in rules.items():
        if rule not in RULE_SETTINGS:
            errors[f"rules.{rule}"] = [f"Unknown. Known: {', '.join(RULE_SETTINGS)}."]
            continue
        known = vars(RULE_SETTINGS[rule])
        for name, value in thresholds.items():
            whole = isinstance(known.get(name), int)
            number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1e9
            if name not in known:
                errors[f"rules.{rule}.{name}"] = [f"Unknown. Known: {', '.join(known)}."]
            elif not number or (whole and value != int(value)):
                errors[f"rules.{rule}.{name}"] = [f"A {'whole ' if whole else ''}number from 0 to 1e9."]
    return errors


@transaction.atomic
def job_create(
    *,
    dataset: Dataset,
    name: str,
    model: str,
    goal_steps: int,
    now: dt.datetime,
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
    """A draft. Each shard enters with its newest revision; `weights` (by shard key) overrides the dataset's weights."""
    config, backend = config or {}, backend or backends()[0]
    settings = training_checked({**snapshot_settings(config), **(training or {})})
    job_file_checked(config, settings, backend)
    settings, corrected = interval_checked(config=config, training=settings, goal_steps=goal_steps)
    _check_job(name, model, goal_steps, num_workers, backend, deadline, now, settings)
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
    text = f"Job {job.name} created. {corrected}".strip()
    event_append(team=job.team, job=job, kind="job.created", subject=job, now=now, actor=actor, text=text)
    return job


def _check_job(
    name: str,
    model: str,
    goal_steps: int,
    num_workers: int,
    backend: str,
    deadline: dt.datetime | None,
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
