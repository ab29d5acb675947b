"""What a job says about itself at its end, as strict JSON: losses, times, compute, decisions with their outcomes,
data made, failures.

Keys: `version`, `written_at`, `job`, `times`, `compute`, `cost`, `baselines`, `totals`, `loss`, `shards`, `decisions`,
`augmentations`, `attempts`, `failures`.
Losses are in nats per supervised token; a loss without data is null.
"""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

from django.conf import settings

from jobs.models import Attempt, Augmentation, Instance, Job, PlanState
from jobs.selectors.attempt_costs import attempt_costs_usd
from jobs.selectors.baselines import baselines_of
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.report_losses import Losses, losses_of

VERSION = 1


def job_report(*, job: Job, now: dt.datetime) -> dict[str, Any]:
    """Compute the report as of `now`."""
    losses = losses_of(job)
    attempts = list(job.attempts.order_by("fence").prefetch_related("workers"))
    costs = attempt_costs_usd(job=job, now=now)
    return clean(
        {
            "version": VERSION,
            "written_at": now.isoformat(),
            "job": _job(job),
            "times": _times(job),
            "compute": _compute(job, now),
            "cost": _cost(job, now),
            "baselines": _baselines(job, now),
            "totals": losses.totals(),
            "loss": losses.overall(),
            "shards": _shards(job, losses),
            "decisions": [_decision(d, losses) for d in _decisions(job)],
            "augmentations": [_augmentation(a) for a in _augmentations(job)],
            "attempts": [_attempt(a, costs) for a in attempts],
            "failures": [f"{a}: {a.detail or a.status}" for a in attempts if a.status == "failed"]
            + ([f"{job.failure_class}: {job.failure_message}"] if job.failure_class else []),
        }
    )


def clean(value: Any) -> Any:
    """Strict JSON: what is not finite becomes null, decimals become numbers, times become text."""
    if isinstance(value, dict):
        return {str(k): clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [clean(v) for v in value]
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dt.datetime):
        return value.isoformat()
    return value


def _job(job: Job) -> dict[str, Any]:
    met = None
    if job.deadline is not None and job.ended_at is not None:
        met = job.status == "succeeded" and job.ended_at <= job.deadline
    return {
        "uuid": str(job.uuid),
        "name": job.name,
        "model": job.model,
        "status": job.status,
        "failure_class": job.failure_class,
        "failure_message": job.failure_message,
        "goal_steps": job.goal_steps,
        "goal_loss": job.goal_loss,
        "goal_reached": job.events.filter(kind="job.goal_reached").values_list("data", flat=True).first(),
        "steps_done": job.current_step,
        "num_workers": job.num_workers,
        "backend": job.backend,
        "deadline": job.deadline,
        "met_deadline": met,
        "deadline_why": _deadline_why(job),
        "budget_usd": job.budget_usd,
    }


def _deadline_why(job: Job) -> str:
    """What it lacked as its last deadline passed, in the words of the queue; empty where it lacked nothing, or was in time."""
    passed = job.events.filter(kind="job.deadline_passed").order_by("-id").values_list("data", flat=True).first()
    return str((passed or {}).get("why", ""))


def _times(job: Job) -> dict[str, Any]:
    return {
        "submitted_at": job.submitted_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "queued_s": _seconds(job.submitted_at, job.started_at or job.ended_at),
        "running_s": _seconds(job.started_at, job.ended_at),
    }


def _seconds(start: dt.datetime | None, end: dt.datetime | None) -> float | None:
    return round((end - start).total_seconds(), 3) if start and end else None


def _compute(job: Job, now: dt.datetime) -> dict[str, Any]:
    """Machines and what they cost. A local run without GPUs counts worker-hours only."""
    lines = [_instance(i, now) for i in job.instances.select_related("attempt").order_by("id")]
    return {
        "worker_hours": round(sum(line["worker_hours"] for line in lines), 6),
        "gpu_hours": round(sum(line["gpu_hours"] for line in lines), 6),
        "cost_usd": round(sum(line["cost_usd"] for line in lines), 6),
        "instances": lines,
    }


def _cost(job: Job, now: dt.datetime) -> dict[str, Any]:
    """What its machines cost, by kind, against the budget and against its first plan."""
    by_kind = {"spot_usd": Decimal(0), "on_demand_usd": Decimal(0)}
    for instance in job.instances.all():
        name = "spot_usd" if instance.kind == "spot" else "on_demand_usd"
        by_kind[name] += instance_cost_usd(instance, start=None, end=now)
    state = PlanState.objects.filter(job=job).first()
    return {
        "total_usd": sum(by_kind.values(), Decimal(0)),
        **by_kind,
        "budget_usd": job.budget_usd,
        "first_planned_usd": state.plan.get("first_cost_usd") if state else None,
    }


def _baselines(job: Job, now: dt.datetime) -> list[dict[str, Any]]:
    """What others would have paid on the same market; empty for a job that was not planned."""
    state = PlanState.objects.filter(job=job).first()
    return [b.as_json() for b in baselines_of(job=job, state=state, slot_s=float(settings.PLAN_SLOT_S), now=now)]


def _instance(instance: Instance, now: dt.datetime) -> dict[str, Any]:
    begun = instance.started_at or instance.created_at
    hours = max(0.0, ((instance.ended_at or now) - begun).total_seconds()) / 3600
    workers = instance.attempt.world_size if instance.attempt else 1
    return {
        "backend": instance.backend,
        "kind": instance.kind,
        "num_gpus": instance.num_gpus,
        "num_workers": workers,
        "price_usd_per_hour": instance.price_usd_per_hour,
        "started_at": begun,
        "ended_at": instance.ended_at,
        "worker_hours": workers * hours,
        "gpu_hours": instance.num_gpus * hours,
        "cost_usd": float(instance_cost_usd(instance, start=None, end=now)),
    }


def _shards(job: Job, losses: Losses) -> list[dict[str, Any]]:
    rows = job.job_shards.select_related("shard", "revision").order_by("index")
    return [
        {
            "shard": row.shard.key,
            "category": row.shard.category,
            "revision": row.revision.number,
            "num_samples": row.revision.num_samples,
            "weight": row.weight,
            "paused": row.paused,
            **losses.of_shard(row.shard.key),
        }
        for row in rows
    ]


def _decisions(job: Job) -> Any:
    return job.decisions.select_related("team").prefetch_related("approvals__user").order_by("number")


def _decision(decision: Any, losses: Losses) -> dict[str, Any]:
    answers = [answer for answer in decision.approvals.all() if answer.void_at is None]
    shard = decision.subject.removeprefix("shard:") if decision.subject.startswith("shard:") else None
    return {
        "decision": str(decision),
        "uuid": str(decision.uuid),
        "kind": decision.kind,
        "rule": decision.rule,
        "subject": decision.subject,
        "sentence": decision.sentence,
        "status": decision.status,
        "args": decision.args,
        "answers": [
            {"answer": a.answer, "by": str(a.user or f"rule {a.by_rule}"), "reason": a.reason} for a in answers
        ],
        "proposed_at": decision.created_at,
        "executed_at": decision.executed_at,
        "applied_step": decision.applied_step,
        "price_usd": decision.price_usd,
        "expected": decision.expected,
        "outcome": decision.outcome,
        "failure": decision.failure,
        **losses.around(shard, decision.applied_step),
    }


def _augmentations(job: Job) -> Any:
    rows = job.augmentations.select_related("shard", "parent", "decision", "directive")
    return rows.prefetch_related("batches", "revisions").order_by("id")


def _augmentation(augmentation: Augmentation) -> dict[str, Any]:
    rejected: dict[str, int] = {}
    generators: dict[str, int] = {}
    for batch in augmentation.batches.all():
        for reason, count in batch.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + count
        for sample in batch.samples:
            generators[sample.get("generator", "")] = generators.get(sample.get("generator", ""), 0) + 1
    revision = max(augmentation.revisions.all(), key=lambda r: r.number, default=None)
    return {
        "uuid": str(augmentation.uuid),
        "decision": str(augmentation.decision) if augmentation.decision else None,
        "shard": augmentation.shard.key,
        "method": augmentation.method,
        "mode": augmentation.mode,
        "params": augmentation.params,
        "seed": augmentation.seed,
        "status": augmentation.status,
        "error": augmentation.error,
        "num_wanted": augmentation.num_wanted,
        "num_made": augmentation.num_made,
        "num_rejected": augmentation.num_rejected,
        "rejected": rejected,
        "generators": generators,
        "parent_revision": augmentation.parent.number if augmentation.parent else None,
        "revision": revision.number if revision else None,
        "applied_step": augmentation.directive.applied_step if augmentation.directive else None,
        "started_at": augmentation.created_at,
        "ended_at": augmentation.ended_at,
    }


def _attempt(attempt: Attempt, costs: dict[int, Decimal]) -> dict[str, Any]:
    return {
        "attempt": attempt.fence,
        "uuid": str(attempt.uuid),
        "status": attempt.status,
        "world_size": attempt.world_size,
        "start_step": attempt.start_step,
        "last_step": attempt.last_step,
        "exit_code": attempt.exit_code,
        "detail": attempt.detail,
        "started_at": attempt.running_at,
        "ended_at": attempt.ended_at,
        "cost_usd": round(float(costs.get(attempt.pk, 0)), 6),
        "totals": attempt.totals,
        "workers": [{"rank": w.rank, "host": w.host, "last_step": w.last_step} for w in attempt.workers.all()],
    }
