"""What a job would take, by the pace of earlier jobs like it."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from django.db.models import Sum

from jobs.clusters import worker_price
from jobs.models import Attempt, Job, JobShard
from jobs.selectors.fits import job_fit

MAX_PAST = 20
# What a pace depends on, and what holds where a job does not say it.
SAME = {
    "global_batch": None, "seq_len": None, "lora": 0, "layout": "padded", "recompute": "none", "dtype": "fp32",
    "parallel": "ddp", "method": "sft",
}  # fmt: skip


@dataclass
class JobPlan:
    """Times in seconds; `deadline_chance` is the share of past paces that make the deadline. None where it cannot be said."""

    goal_steps: int
    num_workers: int
    num_samples: int
    num_epochs: float
    num_past_jobs: int = 0
    duration_s: float | None = None
    duration_low_s: float | None = None
    duration_high_s: float | None = None
    finish_at: dt.datetime | None = None
    worker_hours: float | None = None
    cost_usd: float | None = None
    deadline_margin_s: float | None = None
    deadline_chance: float | None = None
    within_budget: bool | None = None
    gpu_memory_gib: float | None = None
    min_workers: int | None = None
    micro_batch: int | None = None
    num_accumulation: int | None = None
    is_planned: bool = False  # its machines come and go: numbers of the planner, on the market of now
    cost_low_usd: float | None = None
    cost_high_usd: float | None = None
    last_safe_at: dt.datetime | None = None
    first_spot: int | None = None
    first_on_demand: int | None = None
    policy: str = ""  # who decides, in words
    reasons: list[str] = field(default_factory=list)


def job_plan(*, job: Job, now: dt.datetime) -> JobPlan:
    """Duration, cost and chance of a job that has not started, from the paces of earlier attempts with the same settings."""
    shards = JobShard.objects.filter(job=job, weight__gt=0)
    num_samples = shards.aggregate(n=Sum("revision__num_samples"))["n"] or 0
    wanted = job.goal_steps * job.training["global_batch"]
    plan = JobPlan(job.goal_steps, job.num_workers, num_samples, wanted / num_samples if num_samples else 0.0)
    plan.reasons.append(f"{job.goal_steps} steps of {job.training['global_batch']} samples out of {num_samples}.")
    _fit(plan, job)
    paces = past_paces_s(job=job)
    plan.num_past_jobs = len(paces)
    if not paces:
        plan.reasons.append(
            f"No earlier job of {job.model} on {job.num_workers} workers with these settings has shown a pace, "
            "so time and cost are not known yet."
        )
        return plan
    _time(plan, job, paces, now)
    _money(plan, job)
    return plan


def _fit(plan: JobPlan, job: Job) -> None:
    fidelity = (job.config.get("snapshot") or {}).get("fidelity") or "exact"
    fit = job_fit(model=job.model, num_workers=job.num_workers, training=job.training, fidelity=fidelity)
    plan.gpu_memory_gib, plan.min_workers = fit.gpu_memory_gib, fit.min_workers
    plan.micro_batch, plan.num_accumulation = fit.micro_batch, fit.num_accumulation
    plan.reasons.append(fit.reason)


def pace_settings(training: dict[str, Any]) -> tuple[Any, ...]:
    """The training settings on which a pace depends: equal for jobs of which one says what holds for the other by default."""
    return tuple(training.get(name, usual) for name, usual in SAME.items())


def past_paces_s(*, job: Job) -> list[float]:
    """Seconds per step of the newest attempts of the team's jobs with the same model, workers and batch."""
    rows = Attempt.objects.filter(
        job__team_id=job.team_id, job__model=job.model, world_size=job.num_workers, running_at__isnull=False,
        heartbeat_at__isnull=False,
    ).exclude(job_id=job.pk)  # fmt: skip
    paces = []
    for attempt in rows.select_related("job").order_by("-id")[: 5 * MAX_PAST]:
        num_done = attempt.last_step + 1 - attempt.start_step
        same = pace_settings(attempt.job.training) == pace_settings(job.training)
        if same and num_done > 0 and attempt.heartbeat_at and attempt.running_at:
            ran_s = (attempt.heartbeat_at - attempt.running_at).total_seconds()
            paces += [ran_s / num_done] if ran_s > 0 else []  # a clock that was set back says nothing of a pace
    return paces[:MAX_PAST]


def _time(plan: JobPlan, job: Job, paces: list[float], now: dt.datetime) -> None:
    left = max(0, job.goal_steps - job.current_step)
    plan.duration_s, plan.duration_low_s, plan.duration_high_s = (
        left * pace for pace in (median(paces), min(paces), max(paces))
    )
    plan.finish_at = now + dt.timedelta(seconds=plan.duration_s)
    plan.reasons.append(
        f"{median(paces):.3g} s a step, the median of {len(paces)} earlier attempts with these settings."
    )
    if job.deadline is not None:
        left_s = (job.deadline - now).total_seconds()
        plan.deadline_margin_s = left_s - plan.duration_s
        plan.deadline_chance = sum(left * pace <= left_s for pace in paces) / len(paces)
        plan.reasons.append(f"{plan.deadline_chance:.0%} of those paces make the deadline in {left_s / 3600:.2f} h.")


def _money(plan: JobPlan, job: Job) -> None:
    rate = worker_price(job)
    assert plan.duration_s is not None
    plan.worker_hours = job.num_workers * plan.duration_s / 3600
    plan.cost_usd = plan.worker_hours * rate
    plan.reasons.append(f"{plan.worker_hours:.2f} worker-hours at ${rate:.2f} an hour.")
    if job.budget_usd is not None:
        plan.within_budget = plan.cost_usd <= float(job.budget_usd)
