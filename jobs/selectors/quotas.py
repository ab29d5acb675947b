"""The team's quota: GPUs that its jobs hold in every backend, and who comes first where not all can have theirs.

A machine counts until its end is confirmed. Processes on this machine count the GPUs that it has, nodes of a cluster what its
operator says of a worker. The place of a job of fixed size is by the points of its file and its boost, that of a planned one by
those of its last plan.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Sum

from jobs.clusters import gpus_of
from jobs.machines import is_planned
from jobs.models import Attempt, Instance, Job, PlanState, Team
from jobs.states import ATTEMPT_LIVE

TO_PLAN = ("queued", "running", "recovering")  # states in which a planned job is given machines


@dataclass(frozen=True)
class Waiting:
    """A job of fixed size that is to be launched."""

    job: int
    team: int
    priority: float
    submitted_at: dt.datetime
    num_gpus: int

    @property
    def place(self) -> tuple[float, dt.datetime, int]:
        return -self.priority, self.submitted_at, self.job


def gpus_held(*, teams: Iterable[int], apart_from: Iterable[int] = ()) -> dict[int, int]:
    """Team -> GPUs of its machines that have not ended, those of some jobs apart. One query."""
    living = Instance.objects.filter(team__in=list(teams)).exclude(status="terminated")
    living = living.exclude(job__in=list(apart_from), job__isnull=False)
    return {row["team"]: int(row["n"] or 0) for row in living.order_by().values("team").annotate(n=Sum("num_gpus"))}


def fixed_waiting(*, teams: Iterable[int]) -> list[Waiting]:
    """Jobs of fixed size that wait for their launch and that the quota could hold, first those that come first. One query."""
    started = Exists(Attempt.objects.filter(job=OuterRef("pk"), status__in=ATTEMPT_LIVE))
    rows = Job.objects.filter(~started, team__in=list(teams), status__in=("queued", "recovering"), plan_state=None)
    found = []
    for job in rows.select_related("team").defer("report"):
        one, most = _waiting(job), job.team.max_gpus
        if one.num_gpus and not is_planned(job) and (most is None or one.num_gpus <= most):
            found.append(one)
    return sorted(found, key=lambda one: one.place)


def _waiting(job: Job) -> Waiting:
    asked_at = job.submitted_at or job.created_at
    return Waiting(job.pk, job.team_id, float(job.priority + job.boost), asked_at, gpus_of(job, job.num_workers))


def launch_refusal(*, job: Job, team: Team) -> str:
    """Why a job of fixed size may not be launched now; empty if it may. Asked under the team's lock.

    Its own earlier machines do not count: the next attempt takes their place.
    """
    mine = _waiting(job)
    if team.max_gpus is None or not mine.num_gpus:
        return ""
    if mine.num_gpus > team.max_gpus:
        return f"team quota: it needs {mine.num_gpus} GPUs, and the team may hold {team.max_gpus}"
    held = gpus_held(teams=[team.pk], apart_from=[job.pk]).get(team.pk, 0)
    kept = _kept_for_first(mine)
    if held + kept + mine.num_gpus <= team.max_gpus:
        return ""
    first = f", {kept} more are kept for jobs that come first" if held + mine.num_gpus <= team.max_gpus else ""
    return f"team quota: {held} of {team.max_gpus} GPUs are held{first}"


def _kept_for_first(mine: Waiting) -> int:
    """GPUs that those before it wait for."""
    others = (one for one in fixed_waiting(teams=[mine.team]) if one.job != mine.job)
    fixed = sum(one.num_gpus for one in others if one.place < mine.place)
    lacking = PlanState.objects.filter(
        job__team=mine.team, job__status__in=TO_PLAN, waits_on="quota", priority__gt=mine.priority
    )
    return fixed + sum(int(plan.get("lacks") or 0) for plan in lacking.values_list("plan", flat=True))


def growth_refusal(*, job: Job, num_workers: int) -> str:
    """Why the quota has no room for that many workers of a job of fixed size; empty where it has, or where they are no more."""
    most, wanted = job.team.max_gpus, gpus_of(job, num_workers)
    if most is None or wanted <= gpus_of(job, job.num_workers):
        return ""
    held = gpus_held(teams=[job.team_id], apart_from=[job.pk]).get(job.team_id, 0)
    if held + wanted <= most:
        return ""
    return f"team quota: {held} of {most} GPUs are with other jobs, {wanted} are needed"


@dataclass(frozen=True)
class Unplanned:
    """What the planner has to leave alone of the quotas: GPUs held beside the jobs that it plans, and jobs that wait for some."""

    gpus: dict[int, int]  # by team
    waiting: dict[int, list[Waiting]]  # by team


def unplanned(*, jobs: Iterable[Job]) -> Unplanned:
    """The same for the teams with a quota among those of the planned jobs. Two queries, none without a quota."""
    jobs = list(jobs)
    teams = {job.team_id for job in jobs if job.team.max_gpus is not None}
    if not teams:
        return Unplanned({}, {})
    waiting: dict[int, list[Waiting]] = defaultdict(list)
    for one in fixed_waiting(teams=teams):
        waiting[one.team].append(one)
    return Unplanned(gpus_held(teams=teams, apart_from=[job.pk for job in jobs]), dict(waiting))
