"""The Dramatiq actors: one per priority, all doing the same. A message names a batch; the row decides."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable

import dramatiq
import structlog
from django.db import close_old_connections, transaction
from django.utils import timezone

from jobs.models import Augmentation, AugmentationBatch
from jobs.services.augmentations import batch_claim, batch_done, batch_fail, batch_release
from jobs.services.deliveries import augmentation_complete
from jobs.services.directives import directive_issue
from jobs.signals import changed
from jobs.states import ATTEMPT_LIVE
from workers.augmentation.batches import batch_make
from workers.augmentation.endpoint import EndpointBusy
from workers.augmentation.models import NoWeightsYet
from workers.augmentation.registry import MethodError
from workers.dramatiq_app import broker

logger = structlog.get_logger(__name__)

TIME_LIMIT_MS = 110_000  # below the lease of a batch
WEIGHTS_POLL = dt.timedelta(seconds=4)
ASK_AGAIN = dt.timedelta(seconds=60)
NOTICE_EVERY_S = 1.0
URGENCY = {"high": 0, "normal": 50, "low": 100}  # Dramatiq: lower goes first
_noticed: dict[int, float] = {}


def batch_grind(batch_id: int) -> str:
    """Make one batch if it can be had; returns done, waiting, again, refused or skipped. Any number of calls make it once."""
    batch = batch_claim(batch_id=batch_id, now=timezone.now())
    if batch is None:
        _complete_if_last(batch_id)
        return "skipped"
    try:
        result = batch_make(batch)
    except NoWeightsYet as wait:
        if (refusal := weights_ask(batch.augmentation, now=timezone.now())) is not None:
            batch_fail(
                batch=batch, now=timezone.now(), error=f"The trainer gives no weights: {refusal}", permanent=True
            )
            _complete_if_last(batch_id)
            return "refused"
        batch_release(batch=batch, now=timezone.now(), reason=str(wait), delay=WEIGHTS_POLL)
        return "waiting"
    except EndpointBusy as busy:
        batch_fail(batch=batch, now=timezone.now(), error=str(busy))
        return "again"
    except MethodError as error:
        batch_fail(batch=batch, now=timezone.now(), error=str(error), permanent=True)
        _complete_if_last(batch_id)
        return "refused"
    except Exception as error:  # a bad sample must not stop the others: logged, stored, tried again, then given up
        logger.exception("batch_crashed", batch=batch_id)
        batch_fail(batch=batch, now=timezone.now(), error=f"{type(error).__name__}: {error}")
        return "again"
    batch_done(
        batch=batch, samples=result.samples, rejected=result.rejected, generator=result.generator, now=timezone.now()
    )
    progress_notice(batch.augmentation)
    _complete_if_last(batch_id)
    return "done"


def _complete_if_last(batch_id: int) -> None:
    row = AugmentationBatch.objects.select_related("augmentation__job", "augmentation__shard", "augmentation__decision")
    batch = row.filter(pk=batch_id).first()
    if batch is not None and batch.augmentation.status == "running":
        augmentation_complete(augmentation=batch.augmentation, now=timezone.now())


def weights_ask(augmentation: Augmentation, *, now: dt.datetime) -> str | None:
    """Ask the trainer for its weights, unless it has just been asked. Returns its refusal, if it has refused."""
    attempt = augmentation.job.attempts.filter(status__in=ATTEMPT_LIVE).order_by("-fence").first()
    if attempt is None:
        return None
    last = attempt.directives.filter(action="snapshot").order_by("-id").first()
    if last is not None and last.status == "refused":
        return last.detail or "it refused the snapshot"
    under_way = last is not None and (last.status in ("issued", "delivered") or now - last.status_at < ASK_AGAIN)
    if not under_way:
        directive_issue(attempt=attempt, action="snapshot", args={"reason": "weights for an augmentation"}, now=now)
    return None


def progress_notice(augmentation: Augmentation) -> None:
    """Tell watchers that there is progress, at most once a second from this process."""
    now = time.monotonic()
    if now - _noticed.get(augmentation.pk, -NOTICE_EVERY_S) < NOTICE_EVERY_S:
        return
    _noticed[augmentation.pk] = now
    notice = {
        "team_id": augmentation.job.team_id,
        "job_id": augmentation.job_id,
        "kind": "augmentation.progress",
        "subject_type": "Augmentation",
        "subject_uuid": str(augmentation.uuid),
        "event_id": None,
    }
    transaction.on_commit(lambda: changed.send_robust(sender=Augmentation, **notice), robust=True)


def _actor(priority: str) -> dramatiq.Actor[[int], None]:
    def grind(batch_id: int) -> None:
        close_old_connections()
        try:
            batch_grind(batch_id)
        finally:
            close_old_connections()

    make = dramatiq.actor(
        broker=broker,
        actor_name=f"grind_{priority}",
        queue_name=priority,
        priority=URGENCY[priority],
        max_retries=0,  # the row counts tries, the sweep sends again
        time_limit=TIME_LIMIT_MS,
    )
    return make(grind)


ACTORS = {priority: _actor(priority) for priority in URGENCY}


def batches_send(batches: Iterable[tuple[int, str]]) -> int:
    """Announce batches by (id, priority). With the broker away nothing is sent; the sweep tries again."""
    num = 0
    for batch_id, priority in batches:
        try:
            ACTORS[priority].send(batch_id)
        except (dramatiq.errors.ConnectionError, OSError) as error:
            logger.warning("batches_not_sent", error=str(error))
            break
        num += 1
    return num
