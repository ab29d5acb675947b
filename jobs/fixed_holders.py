"""Jobs of fixed size where GPUs of a team's quota are to go from one that comes after to one that comes first: what they hold,
what the next of them waits for, and what is being freed already. All of it or nothing: their size is given by hand."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings
from django.db.models import Exists, Max, OuterRef, Sum

from jobs.machines import is_planned
from jobs.models import Attempt, Command, Decision, Instance, Job, Snapshot, Team
from jobs.scheduler.priority import NEAR_GOAL
from jobs.scheduler.victims import KIND, UNKNOWN_S, WINDOW_SLOTS, Holder, Need
from jobs.selectors.quotas import fixed_waiting, launch_lacks

OPEN = ("proposed", "approved", "executing")


@dataclass
class Fixed:
    """Of some teams, by team: jobs of fixed size that hold GPUs, and their proposals to make room that are open or under way."""

    holders: dict[int, list[tuple[Job, Holder]]] = field(default_factory=lambda: defaultdict(list))
    asks: list[Decision] = field(default_factory=list)
    freed: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # GPUs on their way out, by team


def fixed_asks(*, teams: Collection[int]) -> Fixed:
    """Who is asked, and what is being freed; without the holders. One query, two where something is being freed."""
    found = Fixed(asks=_asks(teams))
    under_way = [decision for decision in found.asks if decision.status != "proposed"]
    held = _gpus([decision.job_id for decision in under_way]) if under_way else {}
    for decision in under_way:
        found.freed[decision.team_id] += held.get(decision.job_id, (0, 0.0))[0]
    return found


def holders_add(found: Fixed, *, teams: Collection[int], now: dt.datetime) -> None:
    """Read who trains at the moment, and what each would lose. A fixed number of queries, one where nobody does."""
    living = Attempt.objects.filter(job=OuterRef("pk"), status="running")
    rows = Job.objects.filter(Exists(living), team__in=teams, status="running", plan_state=None).select_related("team")
    jobs = {job.pk: job for job in rows.defer("report") if not is_planned(job)}
    if jobs:
        _holders(found, jobs, now)


def _asks(teams: Collection[int]) -> list[Decision]:
    rows = Decision.objects.filter(team__in=teams, kind=KIND, status__in=OPEN, job__plan_state=None)
    return [d for d in rows.select_related("job__team").order_by("id") if not is_planned(d.job)]


def _gpus(jobs: Iterable[int]) -> dict[int, tuple[int, float]]:
    """Job id -> GPUs that it holds, and what one costs an hour."""
    living = Instance.objects.filter(job__in=list(jobs)).exclude(status="terminated").order_by().values("job")
    rows = living.annotate(num=Sum("num_gpus"), usd=Sum("price_usd_per_hour"))
    return {row["job"]: (int(row["num"]), float(row["usd"]) / max(1, int(row["num"]))) for row in rows}


def _holders(found: Fixed, jobs: dict[int, Job], now: dt.datetime) -> None:
    since = now - dt.timedelta(seconds=WINDOW_SLOTS * settings.PLAN_SLOT_S)
    held = _gpus(jobs)
    good = Snapshot.objects.filter(job__in=jobs, kind="gradient", status__in=("complete", "verified")).order_by()
    saved = dict(good.values("job").annotate(step=Max("step")).values_list("job", "step"))
    moving = set(
        Command.objects.filter(job__in=jobs, status__in=("issued", "claimed")).values_list("job_id", flat=True)
    )
    told = Decision.objects.filter(job__in=jobs, kind=KIND, status_at__gte=since).exclude(
        status__in=("proposed", "expired", "superseded")
    )
    gave_way = set(told.values_list("job_id", flat=True))
    attempts = Attempt.objects.filter(job__in=jobs, status="running").annotate(pace=Max("workers__step_time_s"))
    for attempt in attempts.order_by("fence"):
        job, (num, usd) = jobs[attempt.job_id], held.get(attempt.job_id, (0, 0.0))
        if num:
            one = _holder(job, attempt, saved.get(job.pk), now)
            one = replace(one, held=num, n_min=num, usd_per_hour=usd)
            one = replace(one, is_moving=job.pk in moving, gave_way=job.pk in gave_way)
            found.holders[job.team_id].append((job, one))


def _holder(job: Job, attempt: Any, saved_step: int | None, now: dt.datetime) -> Holder:
    """`attempt` with its `pace`, seconds a step, None before the first."""
    left_steps, pace_s = max(0, job.goal_steps - job.current_step), attempt.pace or 0.0
    start_s = (attempt.running_at - attempt.created_at).total_seconds() if attempt.running_at else 0.0
    changeover_s = 2 * start_s  # saving takes at most what a start takes: it moves the same state
    slack_s = (job.deadline - now).total_seconds() - left_steps * pace_s if job.deadline and pace_s else None
    return Holder(
        key=job.pk,
        name=job.name,
        effective=float(job.priority + job.boost),
        held=0,
        n_min=0,
        usd_per_hour=0.0,
        changeover_s=changeover_s,
        unsaved_s=None if saved_step is None else max(0, job.current_step - saved_step) * pace_s,
        runs_s=(now - attempt.running_at).total_seconds() if attempt.running_at else 0.0,
        min_run_s=max(settings.PLAN_SLOT_S, 2 * changeover_s),
        can_save="resize" in attempt.capabilities,
        is_protected=job.current_step > 0 and left_steps <= NEAR_GOAL * job.goal_steps,
        slack_s=slack_s if slack_s is not None and slack_s >= 0 else None,
    )


def fixed_need(*, team: Team, freed: int) -> Need | None:
    """What the first job of fixed size that waits for the team's quota lacks, beside what is being freed; None where it has it."""
    waiting = fixed_waiting(teams=[team.pk])
    if team.max_gpus is None or not waiting:
        return None
    first = waiting[0]
    needed, why = launch_lacks(one=first, team=team)
    if needed - freed <= 0:
        return None
    job = Job.objects.only("uuid", "name").get(pk=first.job)
    return Need(
        str(job.uuid),
        job.name,
        first.priority,
        needed - freed,
        UNKNOWN_S,
        f"without it {job.name} waits: it cannot start, {why}",
    )
