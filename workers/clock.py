"""The clock: what has to happen though nobody rings. Every part is harmless to repeat and independent of the others."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable
from typing import Any

import structlog
from django.db.models import F, Q
from django.utils import timezone

from jobs.models import Augmentation, Job
from jobs.planning import job_evaluate, outcomes_measure
from jobs.services.augmentations import augmentation_cancel, augmentation_cut, batches_to_send
from jobs.services.commands import command_issue, commands_due
from jobs.services.deadlines import deadlines_sweep
from jobs.services.decisions import decisions_sweep
from jobs.services.deliveries import augmentation_complete, augmentation_settle
from jobs.services.jobs import job_end
from jobs.services.launches import launches_room_sweep
from jobs.services.machine_ends import ends_late_sweep
from jobs.services.pauses import pauses_enforce
from jobs.services.spending import budgets_sweep, pauses_sweep
from jobs.services.spot_snapshots import snapshots_late_sweep
from jobs.services.team_budgets import team_budgets_sweep
from jobs.states import ATTEMPT_LIVE, JOB_OVER
from workers.augmentation.actors import batches_send
from workers.carry import directives_carry
from workers.celery_app import app
from workers.doorbell import ring
from workers.periodic import once_per_slot
from workers.whatif import whatifs_sweep

logger = structlog.get_logger(__name__)

RING_AGAIN_S = 4.0  # then twice that, and so on up to:
RING_AGAIN_MAX_S = 120.0
RULES_PER_TICK = 200
_rung: dict[int, tuple[float, float]] = {}  # command id -> (monotonic time of the next ring, wait after that)


@app.task(name="workers.sweep")
@once_per_slot("sweep")
def sweep() -> None:
    """Catch what the broker, a killed worker or an ended attempt has lost."""
    everything_sweep(now=timezone.now())


def everything_sweep(*, now: dt.datetime) -> None:
    """All parts of the sweep. One that fails is logged and does not keep the others from running."""
    parts: tuple[Callable[..., object], ...] = (
        commands_ring,
        decisions_sweep,
        launches_sweep,
        launches_room_sweep,
        deadlines_sweep,
        snapshots_late_sweep,
        budgets_sweep,
        team_budgets_sweep,
        pauses_enforce,
        pauses_sweep,
        ends_late_sweep,
        augmentations_sweep,
        batches_ring,
        directives_carry,
        whatifs_sweep,
    )
    for part in parts:
        try:
            part(now=now)
        except (
            Exception
        ):  # the other parts must run all the same; the fault is in the log and comes again in three seconds
            logger.exception("sweep_failed", part=part.__name__)


def commands_ring(*, now: dt.datetime) -> int:
    """Ring for every command that is due and unclaimed: at once, then at growing intervals while it stays so."""
    at = time.monotonic()
    due = commands_due(now=now)
    ids = {command.pk for command in due}
    for gone in set(_rung) - ids:
        _rung.pop(gone, None)
    num = 0
    for command in due:
        next_at, wait = _rung.get(command.pk, (0.0, RING_AGAIN_S))
        if at < next_at:
            continue
        if not ring(command_id=command.pk, queue=command.queue):
            break  # the broker is away: the next sweep tries again
        _rung[command.pk] = (at + wait, min(2 * wait, RING_AGAIN_MAX_S))
        num += 1
    return num


def batches_ring(*, now: dt.datetime) -> int:
    """Announce batches that no actor has taken, or whose actor has gone silent."""
    return batches_send(batches_to_send(now=now))


def augmentations_sweep(*, now: dt.datetime) -> None:
    """Gather what is done, follow what was delivered, end what belongs to a job that is over."""
    rows = Augmentation.objects.select_related("job", "job__team", "shard", "parent", "decision", "directive")
    for augmentation in rows.filter(status__in=("pending", "running", "ready")):
        if augmentation.status == "ready":
            augmentation_settle(augmentation=augmentation, now=now)
        elif augmentation.job.status in JOB_OVER:
            augmentation_cancel(augmentation=augmentation, now=now, reason=f"the job is {augmentation.job.status}")
        else:
            augmentation_cut(augmentation=augmentation, now=now)
            augmentation_complete(augmentation=augmentation, now=now)


def launches_sweep(*, now: dt.datetime) -> None:
    """No job waits for ever: one that wants compute but has neither attempt nor launch on its way gets one, or its end."""
    waiting = Job.objects.filter(status__in=("queued", "recovering")).select_related("team")
    for job in waiting:
        if job.attempts.filter(status__in=ATTEMPT_LIVE).exclude(handle={}).exists():
            continue
        if job.commands.filter(kind="launch", status__in=("issued", "claimed")).exists():
            continue
        last = job.commands.filter(kind="launch").order_by("-id").first()
        if last is not None and last.status == "failed":
            job_end(
                job=job,
                to="failed",
                now=now,
                failure_class="no_capacity",
                message=f"It could not be started: {last.error}",
            )
        elif last is None or not _started_by(last.result, job):
            number = job.attempts.count() + 1
            command_issue(job=job, kind="launch", key=f"launch:{job.uuid}:{number}:sweep", now=now)


def _started_by(result: dict[str, Any], job: Job) -> bool:
    """Whether a finished launch left an attempt that is still to say hello."""
    named = result.get("attempt")
    return named is not None and job.attempts.filter(uuid=named, status__in=ATTEMPT_LIVE).exists()


@app.task(name="workers.rules")
@once_per_slot("rules")
def rules() -> None:
    """Let the backward rules look at every job with new reports, and measure outcomes whose window is over."""
    rules_tick(now=timezone.now())


def rules_tick(*, now: dt.datetime) -> int:
    """Returns how many jobs were looked at. A job whose rules fail does not keep the others waiting."""
    fresh = Job.objects.filter(status="running").filter(
        Q(signal_state__isnull=True) | Q(current_step__gt=F("signal_state__evaluated_step"))
    )
    num = 0
    for job in fresh.select_related("team", "dataset").order_by("-priority", "pk")[:RULES_PER_TICK]:
        try:
            job_evaluate(job=job, now=now)
        except Exception:  # one job's numbers must not stop the rules of the others; logged with the job
            logger.exception("rules_failed", job=str(job.uuid))
        num += 1
    outcomes_measure(now=now)
    return num
