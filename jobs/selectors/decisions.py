"""Reads about decisions: what waits, what happened to what was decided."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from django.db.models import Count, Max, Q, QuerySet, Sum

from jobs.access import Viewer, visible
from jobs.models import ROLES, Approval, Decision, Event, Job, Rule, Team
from jobs.scheduler.plan_outcomes import KEPT
from jobs.scheduler.procurement import RULE as PLANNER
from jobs.services.rules import rule_for
from jobs.states import JOB_OVER

SHOWS = {
    "open": ("proposed",),
    "executing": ("approved", "executing"),
    "closed": ("succeeded", "failed", "rejected", "expired", "superseded", "undone"),
}
ORDERS = {
    "cost": ("-waiting_usd_per_hour", "expires_at", "-id"),
    "ends": ("expires_at", "-id"),
    "job": ("job__name", "expires_at", "-id"),
    "new": ("-id",),
}


def num_open_decisions(*, team: Team) -> int:
    """How many decisions of the team wait for an answer."""
    return Decision.objects.filter(team=team, status="proposed").exclude(job__status__in=JOB_OVER).count()


def decisions_listed(*, viewer: Viewer, team: Team, show: str = "open", order: str = "cost") -> QuerySet[Decision]:
    """The team's decisions in one of `SHOWS`, ordered by one of `ORDERS`, with their jobs."""
    rows = visible(viewer, Decision.objects.filter(team=team, status__in=SHOWS[show])).select_related("job")
    return rows.order_by(*ORDERS[order])


def decision_counts(*, team: Team) -> dict[str, int]:
    """How many decisions each of `SHOWS` holds."""
    by_status = dict(Decision.objects.filter(team=team).order_by().values_list("status").annotate(n=Count("id")))
    return {show: sum(by_status.get(s, 0) for s in statuses) for show, statuses in SHOWS.items()}


def decision_full() -> QuerySet[Decision]:
    """Decisions with all that the detail page shows, in few queries."""
    return Decision.objects.select_related("team", "job", "job__dataset", "requested_by").prefetch_related(
        "approvals__user", "augmentations__shard", "augmentations__revisions", "directives"
    )


def decision_history(*, decision: Decision) -> list[Event]:
    """What happened to a decision, to its command and its augmentation, oldest first."""
    subjects = [decision.uuid, *decision.commands.values_list("uuid", flat=True)]
    subjects += list(decision.augmentations.values_list("uuid", flat=True))
    return list(Event.objects.filter(subject_uuid__in=subjects).order_by("id")[:200])


def decisions_related(*, decision: Decision, limit: int = 5) -> list[Decision]:
    """Earlier decisions about the same subject of the same job, newest first."""
    same = Decision.objects.filter(job_id=decision.job_id, subject=decision.subject).exclude(pk=decision.pk)
    return list(same.order_by("-id")[:limit])


def decision_newer(*, decision: Decision) -> Decision | None:
    """The newest decision that stands in the place of a superseded one; None for others, and where there is none."""
    if decision.status != "superseded":
        return None
    same = Decision.objects.filter(job_id=decision.job_id, rule=decision.rule, subject=decision.subject)
    return same.filter(pk__gt=decision.pk).order_by("-id").first()


@dataclass(frozen=True)
class Record:
    """How decisions turned out: `num_helped` of `num_measured`, and what that is called."""

    num_measured: int = 0
    num_helped: int = 0
    word: str = "helped"


def rule_record(*, team: Team, rule: str = "", since: dt.datetime | None = None, job: Job | None = None) -> Record:
    """How measured decisions of a rule (if none is named, of all that are measured by what they helped) turned out."""
    rows = Decision.objects.filter(team=team, outcome_at__isnull=False)
    planned = rule == PLANNER
    rows = rows.filter(rule=rule) if rule else rows.exclude(rule=PLANNER)
    if since:
        rows = rows.filter(outcome_at__gte=since)
    if job:
        rows = rows.filter(job=job)
    good = KEPT if planned else ("helped",)
    found = rows.aggregate(measured=Count("id"), helped=Count("id", filter=Q(outcome__verdict__in=good)))
    return Record(found["measured"], found["helped"], "kept to their plan" if planned else "helped")


@dataclass(frozen=True)
class Waiting:
    """What waits for a person now."""

    num: int
    usd_per_hour: Decimal
    last_proposed_at: dt.datetime | None


def decisions_waiting(*, team: Team) -> Waiting:
    """Number and price of the open decisions, and when the last one was proposed."""
    rows = Decision.objects.filter(team=team)
    found = rows.filter(status="proposed").aggregate(n=Count("id"), usd=Sum("waiting_usd_per_hour"))
    last = rows.aggregate(at=Max("created_at"))["at"]
    return Waiting(found["n"], found["usd"] or Decimal(0), last)


def rules_in_force(*, team: Team, job: Job | None = None) -> dict[str, Rule]:
    """Decision kind -> the rule that applies: the job's own before the team's."""
    rules = Rule.objects.filter(team=team, enabled=True).filter(Q(job=None) | Q(job=job)).select_related("updated_by")
    return {rule.kind: rule for rule in sorted(rules, key=lambda r: r.job_id is not None)}


def approvals_in_force(*, decision: Decision) -> list[Approval]:
    """The answers that count, oldest first: those given before somebody changed the arguments do not."""
    return [approval for approval in decision.approvals.all() if approval.void_at is None]


def args_in_force(*, decision: Decision) -> dict[str, Any]:
    """The arguments that the next yes would approve: as proposed, or as the approvers so far have edited them."""
    edits = [approval.args for approval in approvals_in_force(decision=decision) if approval.args]
    return {**decision.args, **(edits[-1] if edits else {})}


def approval_role(*, decision: Decision) -> str:
    """The role that may answer a decision: approver, or more where the rule in force for its kind asks for more."""
    wanted = rule_for(job=decision.job, kind=decision.kind).min_role
    return max("approver", wanted, key=ROLES.index)
