"""All that a job's page shows beside its live chart."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db.models import Count, Q

from jobs.machines import is_planned
from jobs.models import Attempt, Augmentation, Decision, Event, Job, Snapshot, Worker
from jobs.previews import job_preview
from jobs.scheduler.procurement import KINDS as PLANNED_KINDS
from jobs.scheduler.rules import completion
from jobs.selectors.attempt_costs import attempt_costs_usd
from jobs.selectors.decisions import rule_record, rules_in_force
from jobs.selectors.jobs import JobLine, job_lines
from jobs.selectors.paces import SLOW, pace_lines
from jobs.selectors.planned_page import planned_page
from jobs.services.attempt_logs import log_tail as attempt_log_tail
from jobs.services.resizes import resize_open, worker_limits
from jobs.services.rules import AUTONOMY_UNSET, KINDS

NUM_SIDE = 6
NUM_OPEN = 3
SILENT_AFTER = dt.timedelta(seconds=60)


def job_page(*, job: Job, now: dt.datetime) -> dict[str, Any]:
    """Context of the job page. A fixed number of queries, however long the job ran."""
    line: JobLine = job_lines(jobs=[job], now=now)[0]
    attempts = list(job.attempts.order_by("-fence")[:NUM_SIDE])
    costs = attempt_costs_usd(job=job, now=now) if attempts else {}
    waiting = list(job.decisions.filter(status="proposed").order_by("-waiting_usd_per_hour", "id"))
    workers = workers_of(attempt=attempts[0]) if attempts else []
    paces = pace_lines(attempt=attempts[0], workers=workers) if attempts else []
    shards = job.job_shards.aggregate(total=Count("id"), paused=Count("id", filter=Q(paused=True)))

    def may(action: str) -> bool:
        return job.status == "running" and bool(attempts) and action in attempts[0].capabilities

    return {
        "now": now,
        "line": line,
        "attempt": attempts[0] if attempts else None,
        "attempts": attempts,
        "attempt_lines": [(attempt, costs.get(attempt.pk)) for attempt in attempts],
        "num_attempts": job.attempts.count(),
        "workers": workers,
        "paces": paces,
        "slowest": max(paces, key=lambda line: line.factor or 0.0).worker.rank if paces else None,
        "slow_percent": round(100 * (SLOW - 1)),
        "shards": shards,
        "open_decisions": waiting[:NUM_OPEN],
        "num_open": len(waiting),
        "num_open_hidden": max(0, len(waiting) - NUM_OPEN),
        "is_silent": is_silent(job, attempts[0] if attempts else None, now),
        "outcomes": outcomes_of(job=job),
        "record": rule_record(team=job.team, job=job),
        "augmentations": augmentations_of(job=job),
        "snapshots": list(Snapshot.objects.filter(job=job).order_by("-step", "-id")[:NUM_SIDE]),
        "rules": rule_lines(job=job),
        "events": list(Event.objects.filter(job=job).order_by("-id")[:8]),
        "log": log_tail(job=job, num_lines=10),
        "resize": resize_open(job=job),
        "worker_limits": worker_limits(job=job),
        "can_resize": job.status == "running" and bool(attempts) and "resize" in attempts[0].capabilities,
        "can_rebalance": len(workers) > 1 and may("rebalance"),
        "can_drain": len(workers) > worker_limits(job=job)[0] and may("resize") and not is_planned(job),
        "plan": job_preview(job=job, now=now) if job.status == "draft" else None,
        **planned_page(job=job, now=now, cost_usd=line.cost_usd),
    }


def is_silent(job: Job, attempt: Attempt | None, now: dt.datetime) -> bool:
    """Whether the trainer of a running job has not been heard for a while."""
    if job.status != "running" or attempt is None or attempt.heartbeat_at is None:
        return False
    return now - attempt.heartbeat_at > SILENT_AFTER


def workers_of(*, attempt: Attempt) -> list[Worker]:
    return list(attempt.workers.order_by("rank")[:64])


def outcomes_of(*, job: Job) -> list[Decision]:
    """Decisions that were carried out, newest first: measured ones with their outcome."""
    done = ("succeeded", "executing", "approved", "failed", "undone")
    return list(job.decisions.filter(status__in=done).order_by("-id")[:NUM_SIDE])


def augmentations_of(*, job: Job) -> list[Augmentation]:
    return list(job.augmentations.select_related("shard", "decision").order_by("-id")[:NUM_SIDE])


def rule_lines(*, job: Job) -> list[dict[str, Any]]:
    """For each kind of decision, what may happen without a person, and how many wait."""
    rules = rules_in_force(team=job.team, job=job)
    waiting = dict(job.decisions.filter(status="proposed").order_by().values_list("kind").annotate(n=Count("id")))
    return [
        {
            "kind": kind,
            "rule": rules.get(kind),
            "unset": AUTONOMY_UNSET.get(kind, "ask"),
            "num_open": waiting.get(kind, 0),
        }
        for kind in KINDS
        if is_planned(job) or kind not in (*PLANNED_KINDS, *completion.KINDS)
    ]


def log_tail(*, job: Job, num_lines: int) -> list[str]:
    """The newest log lines of the newest attempt."""
    attempt = job.attempts.order_by("-fence").first()
    return attempt_log_tail(attempt=attempt, num_lines=num_lines) if attempt else []
