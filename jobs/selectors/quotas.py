"""The team's quota: GPUs that its jobs hold in every backend, and who comes first where not all can have theirs.

A machine counts until its end is confirmed, and what a job of fixed size will have with its next attempt from the moment of the
order: neither a restart nor a resize loses its room to another job. Processes on this machine count the GPUs that it has, nodes of
a cluster what its operator says of a worker. The place of a job of fixed size is by the points of its file and its boost, that of a
planned one by those of its last plan.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django.db.models import Exists, OuterRef, Q, Sum

from jobs.clusters import gpus_of
from jobs.machines import is_planned
from jobs.models import Attempt, Command, Instance, Job, PlanState, Team
from jobs.states import ATTEMPT_LIVE

QUOTA = "team quota"  # how every refusal begins
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
    """Team -> GPUs of its machines that have not ended, and of the next attempts of jobs that restart or grow, those of some jobs
    apart. Two queries, a third where there are such jobs."""
    teams, apart_from = list(teams), set(apart_from)
    living = Instance.objects.filter(team__in=teams).exclude(status="terminated")
    by_team = (
        living.exclude(job__in=apart_from, job__isnull=False).order_by().values("team").annotate(n=Sum("num_gpus"))
    )
    held = {row["team"]: int(row["n"] or 0) for row in by_team}
    restarting = [job for job in _restarting(teams) if job.pk not in apart_from]
    if restarting:
        own = living.filter(job__in=restarting).order_by().values("job").annotate(n=Sum("num_gpus"))
        has = {row["job"]: int(row["n"] or 0) for row in own}
        for job in restarting:
            more = gpus_of(job, job.num_workers) - has.get(job.pk, 0)
            held[job.team_id] = held.get(job.team_id, 0) + max(0, more)
    return held


def _restarting(teams: list[int]) -> list[Job]:
    """Jobs of fixed size between two attempts, or told to leave for another size: they have their place."""
    told = Command.objects.filter(
        job=OuterRef("pk"), kind="resize", status__in=("issued", "claimed"), result__left__isnull=False
    )
    rows = Job.objects.filter(
        Q(status="recovering") | Q(Exists(told), status="running"), team__in=teams, plan_state=None
    )
    return [job for job in rows.defer("report") if not is_planned(job)]


def fixed_waiting(*, teams: Iterable[int]) -> list[Waiting]:
    """Jobs of fixed size that wait for their first attempt and that the quota could hold, in their order. One query."""
    started = Exists(Attempt.objects.filter(job=OuterRef("pk"), status__in=ATTEMPT_LIVE))
    rows = Job.objects.filter(~started, team__in=list(teams), status="queued", plan_state=None)
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

    Its own earlier machines do not count: the next attempt takes their place, whoever else waits.
    """
    mine = _waiting(job)
    if team.max_gpus is None or not mine.num_gpus:
        return ""
    if mine.num_gpus > team.max_gpus:
        return f"{QUOTA}: it needs {mine.num_gpus} GPUs, and the team may hold {team.max_gpus}"
    held = gpus_held(teams=[team.pk], apart_from=[job.pk]).get(team.pk, 0)
    is_full = held + mine.num_gpus > team.max_gpus
    if is_full or job.status == "recovering":
        return _refused(mine, team.max_gpus, held) if is_full else ""
    before = sum(one.num_gpus for one in fixed_waiting(teams=[team.pk]) if one.place < mine.place)
    return _refused(mine, team.max_gpus, held, before + _lacking(mine, _lacks(team)))


def launch_lacks(*, one: Waiting, team: Team) -> tuple[int, str]:
    """How many GPUs the first job that waits lacks, and why in words; (0, "") where it lacks none."""
    assert team.max_gpus is not None
    held, kept = gpus_held(teams=[team.pk]).get(team.pk, 0), _lacking(one, _lacks(team))
    return max(0, held + kept + one.num_gpus - team.max_gpus), _refused(one, team.max_gpus, held, kept)


def launches_refused(*, team: Team) -> dict[int, str]:
    """The same for every job that waits for its first attempt, empty where it may have it. As many queries for all as for one."""
    if team.max_gpus is None:
        return {}
    held, lacks = gpus_held(teams=[team.pk]).get(team.pk, 0), _lacks(team)
    told, before = {}, 0
    for one in fixed_waiting(teams=[team.pk]):
        told[one.job] = _refused(one, team.max_gpus, held, before + _lacking(one, lacks))
        before += one.num_gpus
    return told


def _refused(one: Waiting, most: int, held: int, kept: int = 0) -> str:
    if held + kept + one.num_gpus <= most:
        return ""
    first = f", {kept} more are kept for jobs that come first" if held + one.num_gpus <= most else ""
    return f"{QUOTA}: {held} of {most} GPUs are held{first}"


def _lacks(team: Team) -> list[tuple[float, int]]:
    """Priority and missing GPUs of the planned jobs that wait for the quota."""
    rows = PlanState.objects.filter(job__team=team, job__status__in=TO_PLAN, waits_on="quota")
    return [(priority, int(plan.get("lacks") or 0)) for priority, plan in rows.values_list("priority", "plan")]


def _lacking(one: Waiting, lacks: Sequence[tuple[float, int]]) -> int:
    return sum(num for priority, num in lacks if priority > one.priority)


def growth_refusal(*, job: Job, num_workers: int) -> str:
    """Why the quota has no room for that many workers of a job of fixed size; empty where it has, or where they are no more."""
    most, wanted = job.team.max_gpus, gpus_of(job, num_workers)
    if most is None or wanted <= gpus_of(job, job.num_workers):
        return ""
    held = gpus_held(teams=[job.team_id], apart_from=[job.pk]).get(job.team_id, 0)
    if held + wanted <= most:
        return ""
    return f"{QUOTA}: {held} of {most} GPUs are with other jobs, {wanted} are needed"


@dataclass(frozen=True)
class Unplanned:
    """What the planner has to leave alone of the quotas: GPUs held beside the jobs that it plans, and jobs that wait for some."""

    gpus: dict[int, int]  # by team
    waiting: dict[int, list[Waiting]]  # by team


def unplanned(*, jobs: Iterable[Job]) -> Unplanned:
    """The same for the teams with a quota among those of the planned jobs. A fixed number of queries, none without a quota."""
    jobs = list(jobs)
    teams = {job.team_id for job in jobs if job.team.max_gpus is not None}
    if not teams:
        return Unplanned({}, {})
    waiting: dict[int, list[Waiting]] = defaultdict(list)
    for one in fixed_waiting(teams=teams):
        waiting[one.team].append(one)
    return Unplanned(gpus_held(teams=teams, apart_from=[job.pk for job in jobs]), dict(waiting))
