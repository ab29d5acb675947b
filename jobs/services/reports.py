"""Reports of trainers: stored once, rolled up, answered with directives; many of them in one transaction.

`reports_store` is the one way in. The HTTP side collects what arrives at the same time and stores it together, because a
commit costs more than a report.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.core.exceptions import ValidationError
from django.db import transaction
from numpy.typing import NDArray

from jobs.errors import DomainError, Invalid, NotAllowed, Superseded
from jobs.models import Attempt, Directive, Event, JobShard, Report
from jobs.services.attempt_logs import log_append
from jobs.services.directives import directive_acknowledge, directives_deliver
from jobs.services.events import TRAINER, event_append
from jobs.services.report_form import HUGE, AppliedForm, Batch
from jobs.services.report_rows import (
    Writing,
    attempt_touch,
    attempts_locked,
    last_step,
    living_tokens,
    report_insert,
    shard_indices,
    workers_touch,
)
from jobs.services.rollups import shard_points_add, worker_steps_add
from jobs.signals import reported

logger = logging.getLogger(__name__)

ALERT_EVERY = dt.timedelta(minutes=5)  # at most one event about non-finite losses of an attempt in this time


class TokenEnded(NotAllowed):
    """The token was revoked or expired between the first look at it and the write."""

    code = "bad_token"


@dataclass(frozen=True)
class Incoming:
    """A checked report on its way into the database. `token_id` is looked at again in the transaction that stores it."""

    attempt_id: int
    batch: Batch
    token_id: int | None = None


@dataclass
class Stored:
    """What became of a report."""

    num_steps: int
    num_points: int
    duplicate: bool = False
    directives: list[Directive] = field(default_factory=list)


def report_add(*, attempt: Attempt, batch: Batch, now: dt.datetime, token_id: int | None = None) -> Stored:
    """Store one report. Raises `Superseded`, `Invalid` (unknown shard, rank beyond the world), `TokenEnded`."""
    result = reports_store(reports=[Incoming(attempt.pk, batch, token_id)], now=now)[0]
    if isinstance(result, DomainError):
        raise result
    return result


def reports_store(*, reports: list[Incoming], now: dt.datetime) -> list[Stored | DomainError]:
    """Store reports in one transaction; the answers stand in the same order. A refused report does not touch the others."""
    results: list[Stored | DomainError | None] = [None] * len(reports)
    with transaction.atomic():
        attempts = attempts_locked({r.attempt_id for r in reports})
        living = living_tokens({r.token_id for r in reports}, now)
        for attempt in attempts:
            mine = [i for i, r in enumerate(reports) if r.attempt_id == attempt.pk]
            intake = _Intake(attempt, now)
            for i in mine:
                results[i] = intake.take(reports[i], living)
            intake.write()
            for i in mine:
                result = results[i]
                if isinstance(result, Stored) and reports[i].batch.worker == 0 and attempt.has_orders:
                    result.directives = directives_deliver(attempt=intake.row, now=now)
    assert all(r is not None for r in results), "every report belongs to an attempt"
    return results  # type: ignore[return-value]


class _Intake:
    """The reports of one attempt within one transaction: taken one by one, written together."""

    def __init__(self, attempt: Writing, now: dt.datetime) -> None:
        self.attempt, self.now = attempt, now
        self.batches: list[Batch] = []
        self.places: list[NDArray] = []

    @functools.cached_property
    def row(self) -> Attempt:
        """The whole row, for the few reports that need it."""
        return Attempt.objects.select_related("job", "job__team").get(pk=self.attempt.pk)

    def take(self, report: Incoming, living: set[int | None]) -> Stored | DomainError:
        batch = report.batch
        if report.token_id not in living:
            return TokenEnded("The token has been revoked or has expired.")
        newest = self.attempt.newest_fence
        if newest != self.attempt.fence:
            return Superseded(
                f"Attempt {self.attempt.fence} has been followed by attempt {newest}; stop.", newest=newest
            )
        try:
            index = shard_indices(self.attempt, batch)
            self._check_rank(batch)
        except Invalid as error:
            return error
        stored = Stored(len(batch.step), batch.num_points)
        if not report_insert(self.attempt.pk, batch, index, self.now):
            stored.duplicate = True
            return stored
        self.batches.append(batch)
        self.places.append(index)
        for ack in batch.applied if batch.worker == 0 else ():
            self._acknowledge(ack)
        return stored

    def _acknowledge(self, ack: AppliedForm) -> None:
        try:
            with transaction.atomic():
                directive_acknowledge(
                    attempt=self.row, directive_uuid=ack.id, outcome=ack.outcome, step=ack.step, detail=ack.detail,
                    now=self.now,
                )  # fmt: skip
        except (DomainError, ValidationError) as error:
            # The telemetry beside it is good, and a trainer that is refused here could only send the same again.
            logger.warning("acknowledgement of directive %s was not taken: %s", ack.id, error)

    def _check_rank(self, batch: Batch) -> None:
        if batch.worker >= max(self.attempt.world_size, 1):
            raise Invalid(
                f"Column worker: the attempt has {self.attempt.world_size} workers, ranks from 0.",
                fields={"worker": [f"From 0 to {self.attempt.world_size - 1}."]},
            )

    def write(self) -> None:
        """Rollups, workers, attempt and job, for all reports that were new."""
        if not self.batches:
            return
        self._write_points()
        self._write_steps()
        workers_touch(self.attempt, self.batches, self.now)
        self._touch_attempt()

    def _write_points(self) -> None:
        batches = self.batches
        if not sum(b.num_points for b in batches):
            return
        loss = np.concatenate([b.loss_sum for b in batches])
        loss = np.where(np.abs(loss) > HUGE, np.copysign(np.inf, loss), loss)
        points = {
            "step": np.concatenate([b.point_step for b in batches]),
            "index": np.concatenate(self.places),
            "tokens": np.concatenate([b.tokens for b in batches]),
            "measured": np.concatenate([b.measured for b in batches]),
        }
        samples = np.concatenate([b.samples for b in batches])
        shard_points_add(
            attempt_id=self.attempt.pk,
            planned_steps=self.attempt.planned_steps,
            loss_sum=loss,
            samples=samples,
            **points,
        )
        bad = points["measured"] & (points["tokens"] > 0) & ~np.isfinite(loss)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            self._alert(int(points["step"][first]), int(points["index"][first]))

    def _write_steps(self) -> None:
        batches = [b for b in self.batches if len(b.step)]
        if not batches:
            return
        norm = _column(batches, "grad_norm")
        flagged = [~np.isfinite(_one(b, "grad_norm")) & ~b.step_nulls.get("grad_norm", _missing(b)) for b in batches]
        worker_steps_add(
            attempt_id=self.attempt.pk,
            planned_steps=self.attempt.planned_steps,
            step=np.concatenate([b.step for b in batches]),
            worker=np.concatenate([np.full(len(b.step), b.worker) for b in batches]),
            step_time_s=_column(batches, "step_time_s"),
            wait_s=_column(batches, "wait_s"),
            tokens=np.nan_to_num(_column(batches, "tokens"), posinf=0, neginf=0).astype(np.int64),
            grad_norm=norm,
            nonfinite=np.concatenate(flagged),
            compute_s=_column(batches, "compute_s"),
            num_micro=_column(batches, "num_micro"),
        )
        if (bad := np.concatenate(flagged)).any():
            self._alert(int(np.concatenate([b.step for b in batches])[bad].min()))

    def _touch_attempt(self) -> None:
        last = max(last_step(b) for b in self.batches)
        busy = any(batch.system.get("busy") for batch in self.batches)
        attempt_touch(self.attempt, max(last, self.attempt.last_step), busy, self.now)
        notice = {"team_id": self.attempt.team_id, "job_id": self.attempt.job_id, "attempt_id": self.attempt.pk}
        transaction.on_commit(lambda: reported.send_robust(sender=Report, **notice), robust=True)
        for batch in self.batches:
            if batch.log:
                write = self._log_writer(batch)
                transaction.on_commit(write, robust=True)

    def _log_writer(self, batch: Batch) -> Any:
        return lambda: log_append(attempt_uuid=self.attempt.uuid, worker=batch.worker, lines=batch.log, now=self.now)

    def _alert(self, step: int, index: int | None = None) -> None:
        """Of the loss of the job's shard `index`, or of the gradient."""
        recent = Event.objects.filter(
            job_id=self.attempt.job_id, kind="attempt.nonfinite", at__gt=self.now - ALERT_EVERY
        )
        if recent.exists():
            return
        what, data = "gradient", dict[str, Any](step=step)
        if index is not None:
            shards = JobShard.objects.filter(job_id=self.attempt.job_id, index=index)
            data["shard"] = shards.values_list("shard__key", flat=True).first()
            what = f"loss of shard {data['shard']}"
        event_append(
            team=self.row.job.team, job=self.row.job, kind="attempt.nonfinite", subject=self.row, now=self.now,
            actor=TRAINER, text=f"The {what} is not finite at step {step:,}.", data=data,
        )  # fmt: skip


def _one(batch: Batch, name: str) -> NDArray:
    return batch.step_columns.get(name, np.full(len(batch.step), np.nan))


def _missing(batch: Batch) -> NDArray:
    """All True where the whole column was not sent, else all False."""
    return np.full(len(batch.step), "grad_norm" not in batch.step_columns)


def _column(batches: list[Batch], name: str) -> NDArray:
    return np.concatenate([_one(b, name) for b in batches])
