"""What an epoch has taken to plan: a lease that its plans confirm. What is not confirmed is due again, with its reason."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from django.db import transaction
from django.db.models import Case, DateTimeField, F, Q, QuerySet, Value, When

from jobs.models import PlanState
from jobs.services.events import event_append
from jobs.services.plans import CALM, FIRST, shortened

LEASE_S = 30.0  # after an epoch has died, its jobs are due again
LEASE_PER_JOB_S = 0.02  # more than an epoch takes for each
AGAIN_S = 30.0  # after a plan that failed; twice as long after each that follows
AGAIN_AT_MOST_S = 600.0


@dataclass(frozen=True)
class Claim:
    """Jobs that one epoch has taken. `why`: job id -> what it was asked for, first those that come first."""

    token: uuid.UUID
    until: dt.datetime  # when they are due again if nothing is stored
    next_at: dt.datetime  # when those that were planned are due again
    why: dict[int, str]
    failed: frozenset[int]  # of these, those whose last plan failed


def plans_claim(*, ids: list[int], now: dt.datetime, every_s: float) -> Claim:
    """Take the jobs that are due. Whoever asks from now on is not answered by this epoch, and makes the job due again."""
    known = set(PlanState.objects.filter(job__in=ids).values_list("job_id", flat=True))
    missing = [PlanState(job_id=pk, due_at=now, why=FIRST) for pk in ids if pk not in known]
    PlanState.objects.bulk_create(missing, ignore_conflicts=True)
    token, until = uuid.uuid4(), now + dt.timedelta(seconds=LEASE_S + LEASE_PER_JOB_S * len(ids))
    # What an epoch has taken and not confirmed stays, unless what was asked since cannot wait and that could.
    taken = Case(When(~Q(why="") & Q(taken__in=CALM), then=F("why")), default=F("taken"))
    PlanState.objects.filter(job__in=ids, due_at__lte=now).update(due_at=until, claim=token, taken=taken, why="")
    rows = PlanState.objects.filter(job__in=ids, claim=token).order_by("-job__priority", "job__submitted_at", "job")
    found = list(rows.values_list("job_id", "taken", "num_failures"))
    failed = frozenset(pk for pk, _, num in found if num)
    return Claim(token, until, now + dt.timedelta(seconds=every_s), {pk: why for pk, why, _ in found}, failed)


def plans_confirm(*, claim: Claim, ids: Collection[int]) -> None:
    """Their plans are stored: they are due at their regular time, those for which somebody has asked since at once."""
    nobody_asked = Q(due_at=claim.until, why="")
    due_at = Case(When(nobody_asked, then=Value(claim.next_at)), default=F("due_at"), output_field=DateTimeField())
    _ours(claim, ids).update(due_at=due_at, claim=None, taken="", num_failures=0)


def plans_release(*, claim: Claim, ids: Collection[int], now: dt.datetime) -> None:
    """Another epoch has planned them meanwhile and did not know why this one was asked: they are due at once, with that reason."""
    if ids:
        _ours(claim, ids).update(due_at=now, claim=None)


def plans_failed(*, claim: Claim, errors: Mapping[int, Exception], now: dt.datetime) -> None:
    """Their plans could not be made: said on the job, in its history once in a row, and tried again later and later."""
    for pk, error in errors.items():
        _failed(claim, pk, " ".join(f"{type(error).__name__}: {error}".split()), now)


@transaction.atomic
def _failed(claim: Claim, pk: int, why: str, now: dt.datetime) -> None:
    state = _ours(claim, [pk]).select_related("job__team").first()
    if state is None:  # another epoch is at it
        return
    num = state.num_failures + 1
    again_at = now + dt.timedelta(seconds=min(AGAIN_AT_MOST_S, AGAIN_S * 2.0 ** min(num - 1, 10)))
    words = f"its plan failed: {shortened(why, 300)}; planned again at {again_at:%H:%M:%S} UTC"
    won = _ours(claim, [pk]).update(claim=None, num_failures=num, due_at=again_at, waits_on="failed", waits_for=words)
    if won and num == 1:
        job = state.job
        text = (
            f"{job.name} could not be planned: {shortened(why, 300)}. What it holds stays as it is; it is planned again at "
            f"{again_at:%H:%M:%S} UTC, and less and less often while that fails."
        )
        event_append(
            team=job.team, job=job, kind="job.plan_failed", subject=job, now=now, text=text, data={"error": why}
        )


def _ours(claim: Claim, ids: Collection[int]) -> QuerySet[PlanState]:
    return PlanState.objects.filter(job__in=ids, claim=claim.token)
