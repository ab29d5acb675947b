"""Augmentations: data jobs cut into small batches, each made once, gathered into a new revision, handed to the running trainer.

Batches are rows with a claim and a lease, so that a lost message, a killed worker or a second delivery neither loses
nor doubles a sample.
"""

from __future__ import annotations

import datetime as dt
import math
import secrets
from typing import Any

from django.db import transaction
from django.db.models import F, Q

from jobs.errors import Conflict, Invalid
from jobs.models import Augmentation, AugmentationBatch, Decision, Job, Shard, ShardRevision
from jobs.selectors.datasets import holds_pairs
from jobs.services.events import SYSTEM, Actor
from jobs.services.transitions import state_move

BATCH_SIZE = 8
BATCH_LEASE = dt.timedelta(seconds=120)
RESEND_AFTER = dt.timedelta(seconds=90)  # a pending batch is announced again after that
WINDOW = 256  # batches
MAX_BATCH_TRIES = 3
MIN_SHARE = 0.25  # of the wanted samples; with fewer the augmentation has failed
URGENT_WITHIN = dt.timedelta(seconds=85)  # priority high: after that the trainer gets what there is
MAX_COUNT = 1_000_000
PRIORITIES = ("high", "normal", "low")
MODES = ("replace", "extend")


def augmentation_start(
    *,
    job: Job,
    shard: Shard,
    parent: ShardRevision,
    method: str,
    count: int,
    now: dt.datetime,
    priority: str = "normal",
    mode: str = "extend",
    params: dict[str, Any] | None = None,
    seed: int = 0,
    decision: Decision | None = None,
    actor: Actor = SYSTEM,
) -> Augmentation:
    """A data job with its batches. One per decision: a second call returns the first. Raises `Invalid` for bad arguments."""
    _check(count=count, priority=priority, mode=mode)
    if holds_pairs(parent):
        raise Invalid(f"{shard.key} holds pairs of answers; the methods make single answers and texts only.")
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=job.pk)  # one at a time, so that a decision has one augmentation
        if decision is not None and (found := decision.augmentations.exclude(status="cancelled").first()) is not None:
            return found
        augmentation = Augmentation.objects.create(
            job=job,
            shard=shard,
            parent=parent,
            decision=decision,
            method=method,
            mode=mode,
            params=params or {},
            seed=seed,
            num_wanted=count,
            num_batches=math.ceil(count / BATCH_SIZE),
            priority=priority,
            status="pending",
            created_at=now,
            status_at=now,
        )
        AugmentationBatch.objects.bulk_create(
            [AugmentationBatch(augmentation=augmentation, number=n) for n in range(augmentation.num_batches)],
            batch_size=1000,
        )
        state_move(
            augmentation, "running", now=now, actor=actor,
            text=f"Makes {count} samples for {shard.key} with {method}, priority {priority}.",
        )  # fmt: skip
    return augmentation


def _check(*, count: int, priority: str, mode: str) -> None:
    errors: dict[str, list[str]] = {}
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_COUNT:
        errors["count"] = [f"A whole number from 1 to {MAX_COUNT:,}."]
    if priority not in PRIORITIES:
        errors["priority"] = [f"One of {', '.join(PRIORITIES)}."]
    if mode not in MODES:
        errors["mode"] = [f"One of {', '.join(MODES)}."]
    if errors:
        raise Invalid("The augmentation cannot be made like this.", fields=errors)


def batch_size(batch: AugmentationBatch) -> int:
    """Samples that a batch is to make; the last one takes the rest."""
    return min(BATCH_SIZE, batch.augmentation.num_wanted - batch.number * BATCH_SIZE)


def batches_to_send(*, now: dt.datetime, augmentation: Augmentation | None = None) -> list[tuple[int, str]]:
    """(batch id, priority) of what wants an actor: new batches, and those whose lease has lapsed. Marks them as announced.

    At most `WINDOW` batches of an augmentation are announced and not yet taken, so that a large one does not fill the broker.
    """
    running = Augmentation.objects.filter(status="running")
    if augmentation is not None:
        running = running.filter(pk=augmentation.pk)
    found: list[tuple[int, str]] = []
    for pk, priority in running.order_by("id").values_list("pk", "priority"):
        found += [(batch, priority) for batch in _announced(pk, now)]
    return found


def _announced(augmentation_id: int, now: dt.datetime) -> list[int]:
    rows = AugmentationBatch.objects.filter(augmentation_id=augmentation_id)
    room = WINDOW - rows.filter(status="pending", lease_until__gte=now).count()
    if room <= 0:
        return []
    waiting = Q(status="pending", lease_until=None) | Q(status__in=("pending", "claimed"), lease_until__lt=now)
    batches = list(rows.filter(waiting).order_by("number").values_list("pk", flat=True)[:room])
    AugmentationBatch.objects.filter(pk__in=batches, status="pending").update(lease_until=now + RESEND_AFTER)
    return batches


def batch_claim(*, batch_id: int, now: dt.datetime, lease: dt.timedelta = BATCH_LEASE) -> AugmentationBatch | None:
    """Take a batch, or None if it is done, held by another, or its augmentation no longer runs."""
    batch = AugmentationBatch.objects.select_related("augmentation").filter(pk=batch_id).first()
    if batch is None or batch.augmentation.status != "running" or batch.status not in ("pending", "claimed"):
        return None
    if batch.status == "claimed" and batch.lease_until is not None and batch.lease_until > now:
        return None
    if batch.num_tries >= MAX_BATCH_TRIES:
        batch_fail(
            batch=batch, now=now, error=batch.error or f"Given up after {MAX_BATCH_TRIES} tries.", permanent=True
        )
        return None
    claim = secrets.token_hex(16)
    won = AugmentationBatch.objects.filter(pk=batch.pk, status=batch.status, claim=batch.claim).update(
        status="claimed", claim=claim, lease_until=now + lease, num_tries=F("num_tries") + 1
    )
    if won != 1:
        return None
    return (
        AugmentationBatch.objects.select_related(
            "augmentation", "augmentation__job", "augmentation__shard", "augmentation__parent"
        )
        .get(pk=batch.pk)
    )  # fmt: skip


def batch_done(
    *,
    batch: AugmentationBatch,
    samples: list[dict[str, Any]],
    rejected: dict[str, int],
    generator: str,
    now: dt.datetime,
) -> bool:
    """Store what a batch made, and count it. False if the claim was lost: another's result stands."""
    with transaction.atomic():
        won = AugmentationBatch.objects.filter(pk=batch.pk, status="claimed", claim=batch.claim).update(
            status="done", samples=samples, rejected=rejected, lease_until=None, error=""
        )
        if won != 1:
            return False
        Augmentation.objects.filter(pk=batch.augmentation_id).update(
            num_made=F("num_made") + len(samples),
            num_rejected=F("num_rejected") + sum(rejected.values()),
            generator=generator,
        )
    return True


def batch_release(*, batch: AugmentationBatch, now: dt.datetime, reason: str, delay: dt.timedelta) -> None:
    """Give a batch back because its time has not come (no weights yet). Uses up no try."""
    AugmentationBatch.objects.filter(pk=batch.pk, status="claimed", claim=batch.claim).update(
        status="pending", claim="", lease_until=now + delay, num_tries=max(0, batch.num_tries - 1), error=reason
    )


def batch_fail(*, batch: AugmentationBatch, now: dt.datetime, error: str, permanent: bool = False) -> None:
    """Note a fault; the batch is tried again after a while unless the fault is permanent or its tries are used up."""
    over = permanent or batch.num_tries >= MAX_BATCH_TRIES
    AugmentationBatch.objects.filter(pk=batch.pk, status=batch.status, claim=batch.claim).update(
        status="failed" if over else "pending",
        claim="",
        lease_until=None if over else now + dt.timedelta(seconds=2**batch.num_tries),
        error=error[:2000],
    )


def augmentation_cut(*, augmentation: Augmentation, now: dt.datetime) -> int:
    """Leave out what an urgent augmentation has not made in time, so that what it has reaches the trainer. Returns
    how many batches.

    Only with at least `MIN_SHARE` of the samples made: fewer are worth waiting for.
    """
    if augmentation.priority != "high" or now - augmentation.created_at < URGENT_WITHIN:
        return 0
    if augmentation.num_made < MIN_SHARE * augmentation.num_wanted:
        return 0
    left = augmentation.batches.filter(status="pending") | augmentation.batches.filter(
        status="claimed", lease_until__lt=now
    )
    return left.update(status="failed", claim="", lease_until=None, error="Left out: the time was up.")


def augmentation_cancel(
    *, augmentation: Augmentation, now: dt.datetime, actor: Actor = SYSTEM, reason: str = ""
) -> Augmentation:
    """Stop a data job. What its batches have made is kept, so that `augmentation_resume` can go on from there."""
    from jobs.services.decisions import decision_failed

    if augmentation.status not in ("pending", "running"):
        raise Conflict(f"The augmentation is already {augmentation.status}.", status=augmentation.status)
    with transaction.atomic():
        why = f": {reason}" if reason else "."
        state_move(
            augmentation, "cancelled", now=now, actor=actor, ended_at=now, error=reason,
            text=f"Augmentation of {augmentation.shard.key} cancelled after {augmentation.num_made} samples{why}",
        )  # fmt: skip
        if augmentation.decision is not None:
            decision_failed(decision=augmentation.decision, now=now, error=f"The augmentation was cancelled{why}")
    return augmentation


def augmentation_resume(*, augmentation: Augmentation, now: dt.datetime, actor: Actor = SYSTEM) -> Augmentation:
    """A new data job with the same arguments and seed that takes over every batch the cancelled one had finished."""
    if augmentation.status not in ("cancelled", "failed"):
        raise Conflict(f"The augmentation is {augmentation.status}; only a cancelled or failed one can be resumed.")
    if augmentation.parent is None:
        raise Conflict("The revision it was made from no longer exists.")
    with transaction.atomic():
        fresh = augmentation_start(
            job=augmentation.job, shard=augmentation.shard, parent=augmentation.parent, method=augmentation.method,
            count=augmentation.num_wanted, priority=augmentation.priority, mode=augmentation.mode,
            params=augmentation.params, seed=augmentation.seed, now=now, actor=actor,
        )  # fmt: skip
        made = rejected = 0
        for old in augmentation.batches.filter(status="done"):
            fresh.batches.filter(number=old.number).update(status="done", samples=old.samples, rejected=old.rejected)
            made += len(old.samples)
            rejected += sum(old.rejected.values())
        Augmentation.objects.filter(pk=fresh.pk).update(
            num_made=made, num_rejected=rejected, generator=augmentation.generator
        )
    fresh.refresh_from_db()
    return fresh
