"""What the overview shows: the loop in numbers, what needs a person, deadlines at risk, money today."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal

from django.db.models import Count, Max, Q, Sum

from jobs.models import ApiToken, Approval, Attempt, Decision, Job, JobShard, Team, Worker
from jobs.selectors.costs import team_cost_usd
from jobs.selectors.decisions import Record, rule_record
from jobs.states import ATTEMPT_LIVE, JOB_ACTIVE

TOKEN_NOTICE = dt.timedelta(days=7)  # how long before its end a token is mentioned
RECORD_SPAN = dt.timedelta(days=7)


@dataclass(frozen=True)
class Loop:
    """Both directions in numbers."""

    num_running: int
    num_queued: int
    num_workers: int
    steps_per_hour: float
    usd_today: Decimal
    record: Record
    num_approved_today: int
    num_automatic_today: int
    num_open: int
    num_paused_shards: int
    num_shards: int
    last_report_at: dt.datetime | None


def loop_numbers(*, team: Team, day: dt.datetime, now: dt.datetime) -> Loop:
    """The loop now; `day` is the beginning of today on the team's clock."""
    by_status = dict(Job.objects.filter(team=team).order_by().values_list("status").annotate(n=Count("id")))
    live = Worker.objects.filter(attempt__job__team=team, attempt__status__in=ATTEMPT_LIVE)
    live = live.exclude(attempt__job__status__in=("succeeded", "failed", "cancelled"))
    slowest = live.order_by().values("attempt").annotate(s=Max("step_time_s")).values_list("s", flat=True)
    answers = Approval.objects.filter(decision__team=team, answer="approve", created_at__gte=day)
    answered = answers.aggregate(
        automatic=Count("id", filter=~Q(by_rule="")), personal=Count("id", filter=Q(by_rule=""))
    )
    shards = JobShard.objects.filter(job__team=team, job__status__in=("running", "paused", "recovering"))
    held = shards.aggregate(paused=Count("id", filter=Q(paused=True)), total=Count("id"))
    return Loop(
        num_running=by_status.get("running", 0),
        num_queued=by_status.get("queued", 0) + by_status.get("recovering", 0),
        num_workers=live.count(),
        steps_per_hour=sum(3600 / s for s in slowest if s),
        usd_today=team_cost_usd(team=team, start=day, now=now),
        record=rule_record(team=team, since=now - RECORD_SPAN),
        num_approved_today=answered["personal"],
        num_automatic_today=answered["automatic"],
        num_open=Decision.objects.filter(team=team, status="proposed").count(),
        num_paused_shards=held["paused"],
        num_shards=held["total"],
        last_report_at=Attempt.objects.filter(job__team=team).aggregate(at=Max("heartbeat_at"))["at"],
    )


def deadlines_missed(*, team: Team) -> list[Job]:
    """Active jobs of which it was said that their deadline has passed, the longest past first."""
    return list(
        Job.objects.filter(team=team, status__in=JOB_ACTIVE, deadline_passed_at__isnull=False).order_by("deadline")[:8]
    )


def budget_active_usd(*, team: Team) -> Decimal:
    """The budgets of the team's active jobs together."""
    return Job.objects.filter(team=team, status__in=JOB_ACTIVE).aggregate(s=Sum("budget_usd"))["s"] or Decimal(0)


def tokens_ending(*, team: Team, now: dt.datetime) -> list[ApiToken]:
    """Tokens of people and services that end soon."""
    rows = ApiToken.objects.filter(team=team, attempt=None, revoked_at=None)
    return list(rows.filter(expires_at__gt=now, expires_at__lte=now + TOKEN_NOTICE).order_by("expires_at")[:3])
