"""Reads about jobs: lists, counts, and all that a job's page shows."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import Count, F, Q, QuerySet

from jobs.access import Viewer, visible
from jobs.models import Command, Job, PlanState, Team
from jobs.selectors.costs import job_costs_usd
from jobs.selectors.pauses import pause_states
from jobs.selectors.progress import Progress, progresses
from jobs.selectors.quotas import TO_PLAN
from jobs.selectors.spending import WARN_SHARE
from jobs.states import JOB_ACTIVE, JOB_OVER

SHOWS = {"active": JOB_ACTIVE, "draft": ("draft",), "ended": JOB_OVER, "all": ("draft", *JOB_ACTIVE, *JOB_OVER)}
ORDERS = {
    "new": ("-id",),
    "deadline": (F("deadline").asc(nulls_last=True), "-id"),
    "name": ("name", "-id"),
}


@dataclass(frozen=True)
class JobLine:
    """A job as lists show it."""

    job: Job
    progress: Progress
    cost_usd: Decimal
    # What a planned job lacks, why the launch of another waits, or what of a paused one still runs, in words.
    waits_for: str = ""
    place: int | None = None  # among the team's planned jobs that wait, by effective priority and then by age
    priority: dict[str, Any] | None = None  # of a planned job: jobs.scheduler.priority.Priority as last worked out
    waits_on: str = ""  # what that is, as a code

    @property
    def margin_s(self) -> float | None:
        return self.progress.margin_s(self.job.deadline)

    @property
    def budget_share(self) -> float | None:
        return float(self.cost_usd / self.job.budget_usd) if self.job.budget_usd else None

    @property
    def budget_nearly_spent(self) -> bool:
        return (self.budget_share or 0.0) >= WARN_SHARE


def jobs_listed(*, viewer: Viewer, team: Team, show: str = "all", order: str = "new", text: str = "") -> QuerySet[Job]:
    """The team's jobs in one of `SHOWS`, whose name or model holds `text`, with their number of open decisions."""
    rows = visible(viewer, Job.objects.filter(team=team, status__in=SHOWS[show])).select_related("dataset")
    if text:
        rows = rows.filter(Q(name__icontains=text) | Q(model__icontains=text))
    rows = rows.annotate(num_open=Count("decisions", filter=Q(decisions__status="proposed")))
    return rows.defer("report", "config").order_by(*ORDERS[order])


def job_lines(*, jobs: Iterable[Job], now: dt.datetime) -> list[JobLine]:
    """Jobs with progress and cost. Five queries, however many jobs, and one more where planned jobs wait, and where others do;
    up to three where some are paused."""
    jobs = list(jobs)
    progress = progresses(jobs=jobs, now=now)
    spent = job_costs_usd(jobs=jobs, now=now)
    states = {s.job_id: s for s in PlanState.objects.filter(job__in=jobs)}
    launches, pauses = launch_waits(jobs=[job for job in jobs if job.pk not in states]), pause_states(jobs=jobs)
    waits = any(state.waits_for for state in states.values())
    places = queue_places(teams={job.team_id for job in jobs}) if waits else {}
    return [
        JobLine(job, progress[job.pk], spent.get(job.pk, Decimal(0)), *_queue(job, states, launches, places, pauses))
        for job in jobs
    ]


def launch_waits(*, jobs: Iterable[Job]) -> dict[int, str]:
    """Job -> why its launch has not come about yet, in words. One query where a job waits for one."""
    waiting = [job.pk for job in jobs if job.status in ("queued", "recovering")]
    rows = Command.objects.filter(job__in=waiting, kind="launch", status="issued").exclude(error="").order_by("id")
    return dict(rows.values_list("job_id", "error")) if waiting else {}


def _queue(
    job: Job,
    states: dict[int, PlanState],
    launches: dict[int, str],
    places: dict[int, int],
    pauses: dict[int, tuple[str, str]],
) -> tuple[str, int | None, dict[str, Any] | None, str]:
    """What it waits for, at which place, and with which priority."""
    state = states.get(job.pk)
    if job.status == "paused":  # the last plan was made before
        code, words = pauses.get(job.pk, ("", ""))
        return words, None, state.plan.get("priority") if state else None, code
    if state is None:
        return launches.get(job.pk, ""), None, None, ""
    return state.waits_for, places.get(state.job_id), state.plan.get("priority"), state.waits_on


def queue_places(*, teams: set[int]) -> dict[int, int]:
    """Planned job that waits for something -> its place in its team's queue, from 1. One query.

    One whose machines are on their way has had its turn.
    """
    waiting = Job.objects.filter(team__in=teams, status__in=TO_PLAN, plan_state__isnull=False)
    waiting = waiting.exclude(plan_state__waits_on__in=("", "machines", "held", "failed"))
    rows = waiting.order_by("-plan_state__priority", "submitted_at", "pk").values_list("pk", "team_id")
    places: dict[int, int] = {}
    seen: Counter[int] = Counter()
    for pk, team in rows:
        seen[team] += 1
        places[pk] = seen[team]
    return places


def job_counts(*, team: Team) -> dict[str, int]:
    """How many jobs each of `SHOWS` holds."""
    by_status = dict(Job.objects.filter(team=team).order_by().values_list("status").annotate(n=Count("id")))
    return {show: sum(by_status.get(s, 0) for s in statuses) for show, statuses in SHOWS.items()}
