"""From rows to the frozen situations that rules read."""

from __future__ import annotations

import datetime as dt

from django.db.models import Sum

from jobs.models import Directive, Instance, Job, JobShard
from jobs.scheduler.situation import PastDecision, ShardFacts, Situation
from jobs.selectors.progress import newest_attempts, progresses
from jobs.selectors.series import shard_series

NUM_BINS = 64  # how far back a rule looks
METHODS = ("self_generate", "paraphrase", "eda")


def series_level(planned_steps: int) -> int:
    """Rollup level of the rules: bins of 4 steps for short jobs, 16 and 64 for longer ones."""
    return 1 if planned_steps <= 3_000 else 2 if planned_steps <= 30_000 else 3


def situation_build(*, job: Job, rule: str, now: dt.datetime, since_step: int | None = None) -> Situation:
    """What `rule` sees of `job` now: the last `NUM_BINS` bins, or all since `since_step`."""
    level = series_level(job.goal_steps)
    since = max(0, job.current_step - NUM_BINS * 4**level) if since_step is None else since_step
    series = shard_series(job, since_step=since, level=level)
    progress = progresses(jobs=[job], now=now)[job.pk]
    return Situation(
        step=job.current_step,
        planned_steps=job.goal_steps,
        bin_steps=series.width,
        shards=_shards(job),
        bins=series.bins,
        loss_sum=series.loss_sum.astype(float),
        tokens=series.tokens.astype("int64"),
        num_nonfinite=series.num_nonfinite.astype("int64"),
        past=past_decisions(job=job, rule=rule, now=now),
        step_time_s=progress.step_time_s or 1.0,
        usd_per_hour=usd_per_hour(job),
        methods=METHODS,
        params=job.config.get("rules", {}).get(rule, {}),
    )


def usd_per_hour(job: Job) -> float:
    """What the job's machines cost now."""
    held = Instance.objects.filter(job=job).exclude(status="terminated")
    return float(held.aggregate(s=Sum("price_usd_per_hour"))["s"] or 0)


def _shards(job: Job) -> tuple[ShardFacts, ...]:
    """Facts of every shard in the order of `JobShard.index`, which is the order of the series."""
    paused_at = {}
    attempt = newest_attempts(jobs=[job]).get(job.pk)
    if attempt is not None:
        pauses = Directive.objects.filter(attempt__job=job, action="pause_shard", status="applied").order_by("id")
        paused_at = {d.args["shard"]: d.applied_step for d in pauses}
    rows = JobShard.objects.filter(job=job).select_related("shard", "revision").order_by("index")
    return tuple(
        ShardFacts(
            key=row.shard.key,
            category=row.shard.category,
            weight=row.weight,
            paused=row.paused,
            pinned=row.pinned,
            num_samples=row.revision.num_samples,
            revision=row.revision.number,
            paused_since_step=paused_at.get(row.shard.key) if row.paused else None,
        )
        for row in rows
    )


def past_decisions(*, job: Job, rule: str, now: dt.datetime) -> tuple[PastDecision, ...]:
    """The newest decision of this rule on each subject."""
    newest: dict[str, PastDecision] = {}
    for decision in job.decisions.filter(rule=rule).exclude(status__in=("proposed", "superseded")).order_by("id"):
        newest[decision.subject] = PastDecision(
            subject=decision.subject,
            kind=decision.kind,
            status=decision.status,
            age_s=max(0.0, (now - decision.status_at).total_seconds()),
            applied_step=decision.applied_step,
        )
    return tuple(newest.values())
