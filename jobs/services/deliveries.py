"""From finished batches to the running trainer: a new shard revision, a directive, and the trainer's word on it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import msgspec
from django.db import transaction

from jobs.errors import Invalid, StaleWrite
from jobs.models import Attempt, Augmentation, AugmentationBatch, Directive, ShardRevision
from jobs.services.augmentations import MIN_SHARE
from jobs.services.decisions import decision_failed
from jobs.services.directives import directive_issue
from jobs.services.shards import revision_create, revision_file
from jobs.services.transitions import state_move
from jobs.states import ATTEMPT_LIVE, JOB_OVER

Sample = dict[str, Any]


def augmentation_complete(*, augmentation: Augmentation, now: dt.datetime) -> bool:
    """Gather the batches into a revision once none is left to do. Returns whether the augmentation is ready now.

    With too few samples it fails, and the decision behind it with the reason. Harmless to repeat.
    """
    augmentation.refresh_from_db()
    if augmentation.status != "running" or augmentation.batches.filter(status__in=("pending", "claimed")).exists():
        return False
    fresh = _gathered(augmentation)
    if len(fresh) < max(1, int(MIN_SHARE * augmentation.num_wanted)):
        augmentation_fail(augmentation=augmentation, now=now, error=_too_few(augmentation, len(fresh)))
        return False
    try:
        _store(augmentation, fresh, now)
    except StaleWrite:
        return False  # cancelled, or completed by another, in the same moment
    except Invalid as error:
        augmentation_fail(augmentation=augmentation, now=now, error=error.message)
        return False
    augmentation_deliver(augmentation=augmentation, now=now)
    return True


def _gathered(augmentation: Augmentation) -> list[Sample]:
    """The batches' samples in order of their numbers, each content once."""
    seen: set[str] = set()
    out: list[Sample] = []
    for samples in augmentation.batches.filter(status="done").order_by("number").values_list("samples", flat=True):
        for sample in samples:
            content = " ".join((sample.get("text") or f"{sample.get('prompt')}\n{sample.get('response')}").split())
            if content not in seen:
                seen.add(content)
                out.append(sample)
    return out


def _too_few(augmentation: Augmentation, num: int) -> str:
    reasons: dict[str, int] = {}
    for rejected in augmentation.batches.values_list("rejected", flat=True):
        for name, count in rejected.items():
            reasons[name] = reasons.get(name, 0) + count
    error = (
        AugmentationBatch.objects.filter(augmentation=augmentation).exclude(error="").values_list("error", flat=True)
    )
    parts = [f"Only {num} of {augmentation.num_wanted} samples could be made"]
    if reasons:
        parts.append("rejected: " + ", ".join(f"{count} {name}" for name, count in sorted(reasons.items())))
    if first := error.first():
        parts.append(first)
    return "; ".join(parts) + "."


def _store(augmentation: Augmentation, fresh: list[Sample], now: dt.datetime) -> ShardRevision:
    with transaction.atomic():
        state_move(
            augmentation, "ready", now=now, num_made=len(fresh),
            text=f"{len(fresh)} new samples for {augmentation.shard.key} are ready.",
        )  # fmt: skip
        return revision_create(
            shard=augmentation.shard,
            samples=_content(augmentation, fresh),
            origin="augmentation",
            now=now,
            augmentation=augmentation,
            parent=augmentation.parent,
            provenance={
                "method": augmentation.method,
                "params": augmentation.params,
                "seed": augmentation.seed,
                "mode": augmentation.mode,
                "generator": augmentation.generator,
                "num_made": len(fresh),
                "num_rejected": augmentation.num_rejected,
                "decision": str(augmentation.decision) if augmentation.decision else None,
            },
        )


def _content(augmentation: Augmentation, fresh: list[Sample]) -> Iterator[Sample]:
    """A revision holds everything that is in force: with `extend` the parent's samples come first."""
    if augmentation.mode == "extend" and augmentation.parent is not None:
        with revision_file(augmentation.parent).open("rb") as file:
            for line in file:
                if line.strip():
                    yield msgspec.json.decode(line)
    yield from fresh


def augmentation_deliver(*, augmentation: Augmentation, now: dt.datetime) -> Directive | None:
    """Order the running trainer to take a ready revision in; None between two attempts (the sweep comes back to it)."""
    attempt = augmentation.job.attempts.filter(status__in=ATTEMPT_LIVE).order_by("-fence").first()
    revision = augmentation.revisions.order_by("-number").first()
    if attempt is None or augmentation.status != "ready":
        return None
    if revision is None:  # the same bytes as the newest revision: nothing to take in
        augmentation_fail(augmentation=augmentation, now=now, error="It made what the shard already holds.")
        return None
    row = augmentation.job.job_shards.get(shard=augmentation.shard)
    command = augmentation.decision.commands.order_by("-id").first() if augmentation.decision else None
    args = revision_args(attempt=attempt, revision=revision, weight=row.weight, resume=True)
    with transaction.atomic():
        directive = augmentation.directive
        if directive is None or directive.attempt_id != attempt.pk:
            directive = directive_issue(
                attempt=attempt, action="add_shard", args=args, now=now, command=command, decision=augmentation.decision
            )
            Augmentation.objects.filter(pk=augmentation.pk).update(directive=directive)
            augmentation.directive = directive
    return directive


def revision_args(*, attempt: Attempt, revision: ShardRevision, weight: float, resume: bool) -> dict[str, Any]:
    """Arguments of the `add_shard` that puts a revision in force. Mode replace: a revision holds all that stays as well."""
    return {
        "shard": revision.shard.key,
        "revision": str(revision.uuid),
        "number": revision.number,
        "url": f"/api/v1/attempts/{attempt.uuid}/revisions/{revision.uuid}/samples/",
        "sha256": revision.sha256,
        "num_samples": revision.num_samples,
        "mode": "replace",
        "weight": weight,
        "resume": resume,
    }


def augmentation_settle(*, augmentation: Augmentation, now: dt.datetime) -> str:
    """Follow the trainer's word on a ready augmentation: delivered, failed, or ordered again from the next attempt."""
    directive = augmentation.directive
    if directive is not None:
        directive.refresh_from_db()
    try:
        if directive is not None and directive.status == "applied":
            state_move(
                augmentation, "delivered", now=now, ended_at=now,
                text=f"The trainer took {augmentation.num_made} samples of {augmentation.shard.key} in"
                f" at step {directive.applied_step}.",
            )  # fmt: skip
        elif directive is not None and directive.status == "refused":
            augmentation_fail(augmentation=augmentation, now=now, error=f"The trainer refused: {directive.detail}")
        elif augmentation.job.status in JOB_OVER:
            augmentation_fail(augmentation=augmentation, now=now, error="The job ended before the trainer took it in.")
        else:
            augmentation_deliver(augmentation=augmentation, now=now)
    except StaleWrite:
        augmentation.refresh_from_db()  # another sweep said it first
    return augmentation.status


def augmentation_fail(*, augmentation: Augmentation, now: dt.datetime, error: str) -> None:
    """Give a data job up, and the decision behind it. Harmless if it is over."""
    if augmentation.status not in ("pending", "running", "ready"):
        return
    with transaction.atomic():
        state_move(
            augmentation, "failed", now=now, ended_at=now, error=error,
            text=f"Augmentation of {augmentation.shard.key} failed: {error}",
        )  # fmt: skip
        if augmentation.decision is not None:
            decision_failed(decision=augmentation.decision, now=now, error=error)
