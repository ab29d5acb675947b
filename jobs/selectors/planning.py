"""Everything that a planning epoch reads, for all planned jobs at once: as many queries for a thousand jobs as for one."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from django.db.models import Max, Q, QuerySet
from django.db.models.fields.json import KT

from jobs.machines import SPOT_POLICIES, for_sale
from jobs.models import Attempt, Command, Decision, Instance, Job, Offer, PlanState, Rule, Worker
from jobs.providers import planned_backend
from jobs.scheduler.procurement import KINDS, RULE, URGENT
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.market import offers_with_latest
from jobs.selectors.plans import pace_settings

ACTIVE = ("queued", "running", "recovering")
MIN_STEPS = 5  # of an attempt that has ended, before its pace is believed
SETTLED_STEPS = 20  # of one that runs, whose first steps are often the slowest by far; a twentieth of a shorter job
MAX_ALIKE = 2_000
ASKED = ("requested", "provisioning")
Rules = dict[tuple[int, int | None, str], Rule]  # (team id, job id or None, kind) -> rule


@dataclass(frozen=True)
class No:
    """An order that was refused; `is_urgent`: it could not wait then."""

    decision: Decision
    is_urgent: bool


@dataclass
class JobRows:
    """The rows of one planned job."""

    job: Job
    state: PlanState | None = None
    attempts: list[Attempt] = field(default_factory=list)
    step_time_s: float | None = None  # of the slowest worker of the newest attempt
    machines: list[Instance] = field(default_factory=list)
    target: Command | None = None  # the newest order for machines, if it is still under way
    asks: list[Decision] = field(default_factory=list)  # proposals of the planner that wait for an answer
    asked_usd: dict[int, float | None] = field(default_factory=dict)  # an hour of on-demand, as each of those says
    changes: list[Decision] = field(default_factory=list)  # of the last while, carried out or under way
    noes: dict[str, No] = field(default_factory=dict)  # kind -> the newest of the last while
    cover: Decision | None = None  # the newest approval of on-demand machines
    gave_way: Decision | None = None  # the newest of the last while to make room for another job, a refused one too
    spent_usd: float = 0.0
    # Attempts of other jobs with the same settings, where it has no pace.
    alike: list[Attempt] = field(default_factory=list)

    def held(self, kind: str) -> int:
        """Machines that run and are under no notice."""
        return sum(m.kind == kind and m.status == "running" and m.notice_at is None for m in self.machines)

    def noticed_in(self, offer_id: int) -> bool:
        """Whether a machine of an offer is being taken: there is no more room in it than what is held."""
        return any(
            m.offer_id == offer_id and m.notice_at is not None and m.status != "terminated" for m in self.machines
        )

    def held_in(self, offer_id: int) -> int:
        """Of those, the spot machines of one offer."""
        there = [m for m in self.machines if m.offer_id == offer_id and m.kind == "spot"]
        return sum(m.status == "running" and m.notice_at is None for m in there)

    @property
    def ordered(self) -> int:
        """Machines that the job is to have by the order under way."""
        args = self.target.args if self.target else {}
        return int(args.get("spot", 0)) + int(args.get("on_demand", 0))

    @property
    def staying(self) -> int:
        """Machines that it keeps if nothing is ordered anew."""
        there = sum(m.status not in ("terminating", "terminated") for m in self.machines)
        return min(there, self.ordered) if self.target is not None else there

    def asked(self, kind: str) -> int:
        return sum(m.kind == kind and m.status in ASKED for m in self.machines)

    def gpus(self) -> int:
        """GPUs that count against the team: until a machine is confirmed to have stopped."""
        return sum(m.num_gpus for m in self.machines if m.status != "terminated")


def planned_jobs() -> list[Job]:
    """Active jobs whose machines are planned, first those that come first: by priority, then by age. One query."""
    rows = _planned().select_related("team", "plan_state", "signal_state").defer("report")
    return list(rows.order_by("-priority", "submitted_at", "pk"))


def _planned() -> QuerySet[Job]:
    return Job.objects.filter(
        status__in=ACTIVE, backend=planned_backend(), config__resources__spot_policy__in=SPOT_POLICIES
    )


def plans_due(*, now: dt.datetime) -> list[int]:
    """Ids of the jobs that are due, or were never planned. Two queries."""
    due = list(_planned().filter(plan_state__due_at__lte=now).values_list("pk", flat=True))
    return due + list(_planned().filter(plan_state=None).values_list("pk", flat=True))


def job_rows(*, jobs: Sequence[Job], now: dt.datetime, since: dt.datetime) -> dict[int, JobRows]:
    """Job id -> its rows. Changes and asks of the planner are those since `since`. Seven queries."""
    found = {job.pk: JobRows(job, getattr(job, "plan_state", None)) for job in jobs}
    columns = (
        "job_id", "fence", "world_size", "start_step", "last_step", "status", "created_at", "running_at", "ended_at",
        "heartbeat_at", "capabilities",
    )  # fmt: skip
    for attempt in Attempt.objects.filter(job__in=found).order_by("fence").only(*columns):
        found[attempt.job_id].attempts.append(attempt)
    newest = {rows.attempts[-1].pk: rows for rows in found.values() if rows.attempts}
    slowest = Worker.objects.filter(attempt__in=newest).order_by().values("attempt").annotate(s=Max("step_time_s"))
    for row in slowest:
        newest[row["attempt"]].step_time_s = row["s"]
    _machines(found, now)
    open_orders = Command.objects.filter(job__in=found, kind__in=KINDS, status__in=("issued", "claimed"))
    for command in open_orders.order_by("id"):
        found[command.job_id].target = command
    _decisions(found, since)
    _alike(found)
    return found


def _alike(found: dict[int, JobRows]) -> None:
    """For jobs that have shown nothing yet: what the team's jobs with the same model and settings have. One query."""
    blank = [rows for rows in found.values() if not any(shows_pace(a, rows.job.goal_steps) for a in rows.attempts)]
    if not blank:
        return
    teams, models = {rows.job.team_id for rows in blank}, {rows.job.model for rows in blank}
    seen = Attempt.objects.filter(job__team__in=teams, job__model__in=models, last_step__gte=MIN_STEPS)
    by_kind: dict[tuple[object, ...], list[Attempt]] = defaultdict(list)
    for attempt in seen.filter(running_at__isnull=False).select_related("job").order_by("-id")[:MAX_ALIKE]:
        if shows_pace(attempt, attempt.job.goal_steps):
            by_kind[_kind(attempt.job)].append(attempt)
    for rows in blank:
        others = (a for a in by_kind[_kind(rows.job)] if a.job_id != rows.job.pk)
        rows.alike = list(islice(others, 20))


def _kind(job: Job) -> tuple[object, ...]:
    return job.team_id, job.model, *pace_settings(job.training)


def shows_pace(attempt: Attempt, goal_steps: int) -> bool:
    """Whether it has done enough for its pace to be believed; until then that of earlier attempts or of the job file holds."""
    done = attempt.last_step + 1 - attempt.start_step
    needed = MIN_STEPS if attempt.ended_at else max(MIN_STEPS, min(SETTLED_STEPS, goal_steps // 20))
    return attempt.running_at is not None and bool(attempt.ended_at or attempt.heartbeat_at) and done >= needed


def _machines(found: dict[int, JobRows], now: dt.datetime) -> None:
    """The offers are few and the machines many, those that have ended too: one object for each offer."""
    for machine in Instance.objects.filter(job__in=found).prefetch_related("offer").order_by("id"):
        rows = found[machine.job_id or 0]
        rows.spent_usd += float(instance_cost_usd(machine, start=None, end=now))
        if machine.offer_id is not None:
            rows.machines.append(machine)


def _decisions(found: dict[int, JobRows], since: dt.datetime) -> None:
    done = ("approved", "executing", "succeeded", "failed")
    mine = Decision.objects.filter(job__in=found, rule=RULE).filter(
        Q(status="proposed")
        | Q(kind="switch_to_on_demand", status__in=done)
        | Q(kind="switch_to_on_demand", status="superseded", executed_at__isnull=False)
        | Q(status__in=(*done, "rejected"), status_at__gte=since)
        | Q(status="superseded", executed_at__isnull=False, status_at__gte=since)
    )
    mine = mine.annotate(ground=KT("evidence__rule"), asked_usd=KT("evidence__on_demand_usd_per_hour"))
    for decision in mine.defer("situation", "evidence", "expected", "outcome").order_by("id"):
        rows = found[decision.job_id]
        decision.job, decision.team = rows.job, rows.job.team
        if decision.status == "proposed":
            rows.asks.append(decision)
            rows.asked_usd[decision.pk] = float(decision.asked_usd) if decision.asked_usd else None
            continue
        if decision.kind == "preempt_job" and decision.status_at >= since:
            rows.gave_way = decision
        if decision.status == "rejected":
            rows.noes[decision.kind] = No(decision, decision.ground in URGENT)
            continue
        if decision.status_at >= since:
            rows.changes.append(decision)
        if decision.kind == "switch_to_on_demand":
            rows.cover = decision  # also of an order that gave way to a newer one: it was approved all the same


@dataclass(frozen=True)
class OfferNow:
    """An offer with what its newest quotes say. `availability` None: the provider does not tell."""

    offer: Offer
    key: str  # public id
    usd_per_hour: float
    availability: int | None

    @property
    def name(self) -> str:
        return str(self.offer)


def offers_for_planning() -> list[OfferNow]:
    """The offers for sale that have a price. One query."""
    found = []
    for offer in offers_with_latest().filter(for_sale()).order_by("pk"):
        price, count = offer.latest_price_usd_per_hour, offer.latest_availability  # type: ignore[attr-defined]
        if price is not None:
            found.append(OfferNow(offer, str(offer.uuid), float(price), count))
    return found


def rules_by_kind(*, jobs: Sequence[Job], kinds: Sequence[str]) -> Rules:
    """The rules in force. One query."""
    rows = Rule.objects.filter(team__in={job.team_id for job in jobs}, kind__in=kinds, enabled=True)
    return {(rule.team_id, rule.job_id, rule.kind): rule for rule in rows}


def rule_in_force(rules: Rules, job: Job, kind: str) -> Rule | None:
    """The job's own rule of a kind, else its team's."""
    return rules.get((job.team_id, job.pk, kind)) or rules.get((job.team_id, None, kind))


def on_demand_spent_usd(rows: JobRows, since: dt.datetime, now: dt.datetime) -> float:
    """What the job's on-demand machines have cost since a moment."""
    bought = [m for m in rows.machines if m.kind == "on_demand" and (m.ended_at is None or m.ended_at > since)]
    return sum(float(instance_cost_usd(m, start=since, end=now)) for m in bought)


def held_by_offer(rows: Sequence[JobRows]) -> dict[int, dict[int, int]]:
    """Offer id -> job id -> spot machines that the job holds or has asked for there."""
    held: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for one in rows:
        for machine in one.machines:
            if machine.kind == "spot" and machine.status in (*ASKED, "running") and machine.offer_id is not None:
                held[machine.offer_id][one.job.pk] += 1
    return held
