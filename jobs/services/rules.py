"""Rules: what may be automated, and what they have used of their limits."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.db import transaction
from django.db.models import QuerySet, Sum

from jobs.errors import Invalid
from jobs.models import AUTONOMY, ROLES, Approval, Augmentation, Decision, Job, Rule, Team
from jobs.scheduler import procurement
from jobs.scheduler.autonomy import Usage
from jobs.scheduler.rules import completion
from jobs.services.events import Actor, event_append

KINDS = (
    "augment_shard",
    "pause_shard",
    "resume_shard",
    "reweight_shards",
    "resize",
    "rebalance",
    "drain_worker",
    *completion.KINDS,
    *procurement.KINDS,
)
LIMITS = (
    "max_usd",
    "max_usd_per_hour",
    "max_usd_per_day",
    "max_usd_per_job",
    "max_extra_usd",
    "max_samples_per_day",
    "max_per_hour",
    "min_confidence",
)
# Without a rule a person is asked; only what a planned job does all the time within its budget happens by itself.
ASKED = ("switch_to_on_demand", "preempt_job")
AUTONOMY_UNSET = dict.fromkeys((kind for kind in procurement.KINDS if kind not in ASKED), "auto")
SAVERS = ("release", "idle")  # they end spending, so that nobody has to say yes twice


def rule_for(*, job: Job, kind: str) -> Rule:
    """The narrowest rule in force: the job's, else the team's, else an unsaved one (`ask`, for most kinds)."""
    rules = {r.job_id: r for r in Rule.objects.filter(team=job.team, kind=kind, enabled=True, job_id__in=[job.pk])}
    if job.pk in rules:
        return rules[job.pk]
    team_rule = Rule.objects.filter(team=job.team, kind=kind, enabled=True, job=None).first()
    return team_rule or rule_unset(team=job.team, kind=kind)


def rule_unset(*, team: Team, kind: str) -> Rule:
    """What holds where nothing is set. Not stored."""
    return Rule(team=team, kind=kind, autonomy=AUTONOMY_UNSET.get(kind, "ask"))


def needs_two(team: Team, price_usd: float, kind: str = "") -> bool:
    """Whether a decision of this kind at this price takes two approvers."""
    return team.two_person and kind not in SAVERS and price_usd >= float(team.two_person_from_usd)


def rule_usage(*, rule: Rule, job: Job, now: dt.datetime) -> Usage:
    """What automatic approvals under `rule` have used: today in the team's (or job's) decisions of that kind."""
    scope = {"job": job} if rule.job_id else {"team": job.team}
    day = now.replace(hour=0, minute=0, second=0, microsecond=0)
    today = Decision.objects.filter(pk__in=_by_rule_since(day), kind=rule.kind, **scope)
    last_hour = Decision.objects.filter(pk__in=_by_rule_since(now - dt.timedelta(hours=1)), kind=rule.kind, **scope)
    by_rule = Approval.objects.filter(by_rule__gt="", void_at=None, decision__job=job, decision__kind=rule.kind)
    return Usage(
        usd_today=float(today.aggregate(s=Sum("price_usd"))["s"] or 0),
        usd_job=float(by_rule.aggregate(s=Sum("decision__price_usd"))["s"] or 0)
        if "max_usd_per_job" in rule.limits
        else 0,
        samples_today=Augmentation.objects.filter(decision__in=today).aggregate(s=Sum("num_wanted"))["s"] or 0,
        num_last_hour=last_hour.count(),
    )


def _by_rule_since(moment: dt.datetime) -> QuerySet[Approval, int]:
    """Ids of the decisions to which a rule said yes since `moment`."""
    given = Approval.objects.filter(by_rule__gt="", void_at=None, created_at__gte=moment)
    return given.order_by().values_list("decision_id", flat=True)


@transaction.atomic
def rule_set(
    *,
    team: Team,
    kind: str,
    autonomy: str,
    now: dt.datetime,
    actor: Actor,
    job: Job | None = None,
    limits: dict[str, Any] | None = None,
    **fields: Any,
) -> Rule:
    """Create or change the rule for a kind of decision, team-wide or for one job."""
    limits = limits or {}
    if autonomy not in AUTONOMY:
        raise Invalid(f"Unknown autonomy {autonomy!r}.", fields={"autonomy": [f"One of {', '.join(AUTONOMY)}."]})
    if kind not in KINDS:
        raise Invalid(f"Unknown kind {kind!r}.", fields={"kind": [f"One of {', '.join(KINDS)}."]})
    for name, value in limits.items():
        number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
        if name not in LIMITS or not number:
            raise Invalid(f"Bad limit {name}.", fields={"limits": [f"Numbers from 0 for any of {', '.join(LIMITS)}."]})
    if fields.get("min_role", "approver") not in ROLES:
        raise Invalid("Unknown role.", fields={"min_role": [f"One of {', '.join(ROLES)}."]})
    rule, _ = Rule.objects.update_or_create(
        team=team,
        job=job,
        kind=kind,
        defaults={"autonomy": autonomy, "limits": limits, "updated_by": actor.user, **fields},
    )
    event_append(
        team=team,
        job=job,
        kind="rule.set",
        subject=rule,
        now=now,
        actor=actor,
        text=f"{kind}: {autonomy}.",
        data={"autonomy": autonomy, "limits": limits},
    )
    return rule
