"""Everything that a planning epoch reads, for all planned jobs at once: as many queries for a thousand jobs as for one."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median

from django.db.models import Max, Q, QuerySet

from jobs.machines import SPOT_POLICIES, for_sale
from jobs.models import Attempt, Command, Decision, Instance, Job, Offer, PlanState, Rule, Worker
from jobs.providers import planned_backend
from jobs.scheduler.procurement import KINDS, RULE
from jobs.selectors.costs import instance_cost_usd
from jobs.selectors.market import offers_with_latest
from jobs.selectors.plans import SAME

ACTIVE = ("queued", "running", "recovering")
MIN_STEPS = 5  # of an attempt, before its pace is believed
MAX_ALIKE = 2_000
ASKED = ("requested", "provisioning")
Rules = dict[tuple[int, int | None, str], Rule]  # (team id, job id or None, kind) -> rule


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
    changes: list[Decision] = field(default_factory=list)  # of the last while, carried out or under way
    refused: Decision | None = None  # on-demand that a person said no to in the last while
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
    """Job id -> its rows. Changes and asks of the planner are those since `since`. Six queries."""
    found = {job.pk: JobRows(job, getattr(job, "plan_state", None)) for job in jobs}
    columns = (
        "job_id", "fence", "world_size", "start_step", "last_step", "status", "created_at", "running_at", "ended_at",
        "heartbeat_at",
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
    blank = [rows for rows in found.values() if not any(_shows_pace(a) for a in rows.attempts)]
    if not blank:
        return
    teams, models = {rows.job.team_id for rows in blank}, {rows.job.model for rows in blank}
    seen = Attempt.objects.filter(job__team__in=teams, job__model__in=models, last_step__gte=MIN_STEPS)
    by_kind: dict[tuple[object, ...], list[Attempt]] = defaultdict(list)
    for attempt in seen.filter(running_at__isnull=False).select_related("job").order_by("-id")[:MAX_ALIKE]:
        if _shows_pace(attempt):
            by_kind[_kind(attempt.job)].append(attempt)
    for rows in blank:
        others = (a for a in by_kind[_kind(rows.job)] if a.job_id != rows.job.pk)
        rows.alike = list(islice(others, 20))


def _kind(job: Job) -> tuple[object, ...]:
    return job.team_id, job.model, *(job.training.get(name) for name in SAME)


def _shows_pace(attempt: Attempt) -> bool:
    done = attempt.last_step + 1 - attempt.start_step
    return attempt.running_at is not None and bool(attempt.ended_at or attempt.heartbeat_at) and done >= MIN_STEPS


def _machines(found: dict[int, JobRows], now: dt.datetime) -> None:
    for machine in Instance.objects.filter(job__in=found).select_related("offer").order_by("id"):
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
    for decision in mine.select_related("team").defer("situation").order_by("id"):
        rows = found[decision.job_id]
        decision.job = rows.job
        if decision.status == "proposed":
            rows.asks.append(decision)
            continue
        if decision.kind == "preempt_job" and decision.status_at >= since:
            rows.gave_way = decision
        if decision.status == "rejected":
            rows.refused = decision if decision.kind == "switch_to_on_demand" else rows.refused
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


def step_times(rows: JobRows) -> tuple[dict[int, float], tuple[int, float] | None, list[float]]:
    """(measured seconds a step by number of workers, the size that runs and its pace, the paces that are known of it)."""
    measured: dict[int, float] = {}
    now: tuple[int, float] | None = None
    known: list[float] = []
    for attempt in rows.attempts:
        if not _shows_pace(attempt):
            continue
        measured[attempt.world_size] = mean_s = _mean_s(attempt)
        if attempt is rows.attempts[-1] and attempt.ended_at is None:
            recent_s = rows.step_time_s or mean_s
            now, known = (attempt.world_size, recent_s), [recent_s, mean_s]
    if measured:
        return measured, now, known or list(measured.values())[-1:]
    others: dict[int, list[float]] = defaultdict(list)
    for attempt in rows.alike:
        others[attempt.world_size].append(_mean_s(attempt))
    times = max(others.values(), key=len, default=[])
    return {size: median(seen) for size, seen in others.items()}, None, [*times, 1.2 * max(times)] if times else []


def _mean_s(attempt: Attempt) -> float:
    until = attempt.ended_at or attempt.heartbeat_at
    assert until is not None
    assert attempt.running_at is not None
    done = attempt.last_step + 1 - attempt.start_step
    return max(1e-6, (until - attempt.running_at).total_seconds() / done)


def changeover_of(rows: JobRows) -> float | None:
    """Seconds without progress at a change, in the middle of the attempts of the job or of those like it.

    From the end of the attempt that left at a snapshot, or from the order of the new one, to its first report; waiting for
    machines is no part of it.
    """
    attempts, lost = rows.attempts or rows.alike, []
    for i, attempt in enumerate(attempts):
        before = attempts[i - 1] if i and rows.attempts else None
        left_at = before.ended_at if before is not None and before.status == "resized" else None
        there = [m.started_at for m in rows.machines if m.started_at and m.started_at <= attempt.created_at]
        begun = max([left_at, *there]) if left_at else attempt.created_at
        if attempt.running_at is not None and attempt.running_at >= begun:
            lost.append((attempt.running_at - begun).total_seconds())
    return median(lost) if lost else None


def boot_of(rows: JobRows) -> float:
    """Seconds from the order of a machine to its start, in the middle of those that were to be had; 0 where there was none yet."""
    waits = [
        (m.started_at - m.created_at).total_seconds() for m in rows.machines if m.started_at and not m.asked.get("num")
    ]
    return max(0.0, median(waits)) if waits else 0.0


def changeover_left(rows: JobRows, changeover_s: float, now: dt.datetime) -> float:
    """Seconds until what is held trains: all of a changeover before the trainer has moved there, then what is left of it."""
    held, newest = rows.held("spot") + rows.held("on_demand"), rows.attempts[-1] if rows.attempts else None
    if not held:
        return 0.0
    if newest is None or newest.ended_at is not None:
        return changeover_s
    if newest.running_at is None:
        return max(0.0, changeover_s - (now - newest.created_at).total_seconds())
    return 0.0 if newest.world_size == held else changeover_s


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
