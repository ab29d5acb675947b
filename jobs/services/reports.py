"""Reports of trainers: stored once, rolled up, answered with directives; many of them in one transaction.

`reports_store` is the one way in. The HTTP side collects what arrives at the same time and stores it together, because a
commit costs more than a report.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django.core.exceptions import ValidationError
from django.db import connection, transaction
from django.db.models import F, Max, Q
from django.db.models.functions import Greatest
from numpy.typing import NDArray

from jobs.errors import DomainError, Invalid, NotAllowed, Superseded
from jobs.models import ApiToken, Attempt, Directive, Event, Job, JobShard, Report, Worker
from jobs.services.attempt_logs import log_append
from jobs.services.directives import directive_acknowledge, directives_deliver
from jobs.services.events import TRAINER, event_append
from jobs.services.report_form import HUGE, AppliedForm, Batch
from jobs.services.report_store import payload_of
from jobs.services.rollups import shard_points_add, worker_steps_add
from jobs.signals import reported

logger = logging.getLogger(__name__)

SMOOTHING = 0.2  # weight of a new report in a worker's step time
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
    fresh: list[Report] = []
    with transaction.atomic():
        living = _living_tokens(reports, now)
        attempts = _locked_attempts({r.attempt_id for r in reports})
        for attempt in attempts.values():
            mine = [i for i, r in enumerate(reports) if r.attempt_id == attempt.pk]
            intake = _Intake(attempt, now)
            for i in mine:
                results[i] = intake.take(reports[i], living)
            intake.write()
            for i in mine:
                if isinstance(results[i], Stored) and reports[i].batch.worker == 0:
                    results[i].directives = directives_deliver(attempt=attempt, now=now)  # type: ignore[union-attr]
            fresh += intake.fresh
    assert all(r is not None for r in results), "every report belongs to an attempt"
    return results  # type: ignore[return-value]


def _living_tokens(reports: list[Incoming], now: dt.datetime) -> set[int | None]:
    asked = {r.token_id for r in reports if r.token_id is not None}
    if not asked:
        return {None}
    alive = ApiToken.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), pk__in=asked, revoked_at=None)
    return {None, *alive.order_by().values_list("pk", flat=True)}


def _locked_attempts(ids: set[int]) -> dict[int, Attempt]:
    """The attempts, locked against other writers, in one order for all so that two groups cannot wait for each other."""
    rows = (
        Attempt.objects.select_for_update(of=("self",))
        .filter(pk__in=ids)
        .order_by("pk")
        .select_related("job", "job__team")
    )
    attempts = {attempt.pk: attempt for attempt in rows}
    newest = dict(
        Attempt.objects.filter(job_id__in={a.job_id for a in attempts.values()})
        .order_by()
        .values_list("job_id")
        .annotate(Max("fence"))
    )
    for attempt in attempts.values():
        attempt.newest_fence = newest[attempt.job_id]  # type: ignore[attr-defined]
    return attempts


class _Intake:
    """The reports of one attempt within one transaction: taken one by one, written together."""

    def __init__(self, attempt: Attempt, now: dt.datetime) -> None:
        self.attempt, self.now = attempt, now
        self.indices = _ShardIndices(attempt.job_id)
        self.batches: list[Batch] = []
        self.places: list[NDArray] = []
        self.fresh: list[Report] = []

    def take(self, report: Incoming, living: set[int | None]) -> Stored | DomainError:
        batch = report.batch
        if report.token_id not in living:
            return TokenEnded("The token has been revoked or has expired.")
        newest = self.attempt.newest_fence  # type: ignore[attr-defined]
        if newest != self.attempt.fence:
            return Superseded(
                f"Attempt {self.attempt.fence} has been followed by attempt {newest}; stop.", newest=newest
            )
        try:
            index = self.indices.of(batch)
            self._check_rank(batch)
        except Invalid as error:
            return error
        stored = Stored(len(batch.step), batch.num_points)
        if not _insert(self.attempt.pk, batch, index, self.now):
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
                    attempt=self.attempt, directive_uuid=ack.id, outcome=ack.outcome, step=ack.step, detail=ack.detail,
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
        for batch in self.batches:
            self._touch_worker(batch)
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
        shard_points_add(attempt_id=self.attempt.pk, loss_sum=loss, samples=samples, **points)
        bad = points["measured"] & (points["tokens"] > 0) & ~np.isfinite(loss)
        if bad.any():
            first = int(np.flatnonzero(bad)[0])
            self._alert(int(points["index"][first]), int(points["step"][first]))

    def _write_steps(self) -> None:
        batches = [b for b in self.batches if len(b.step)]
        if not batches:
            return
        norm = _column(batches, "grad_norm")
        flagged = [~np.isfinite(_one(b, "grad_norm")) & ~b.step_nulls.get("grad_norm", _missing(b)) for b in batches]
        worker_steps_add(
            attempt_id=self.attempt.pk,
            step=np.concatenate([b.step for b in batches]),
            worker=np.concatenate([np.full(len(b.step), b.worker) for b in batches]),
            step_time_s=_column(batches, "step_time_s"),
            wait_s=_column(batches, "wait_s"),
            tokens=np.nan_to_num(_column(batches, "tokens"), posinf=0, neginf=0).astype(np.int64),
            grad_norm=norm,
            nonfinite=np.concatenate(flagged),
        )

    def _touch_worker(self, batch: Batch) -> None:
        times = batch.step_columns.get("step_time_s", np.empty(0))
        times = times[np.isfinite(times)]
        fields: dict[str, Any] = {"heartbeat_at": self.now}
        if batch.system:
            fields["system"] = batch.system
        last_step = _last_step(batch)
        rows = Worker.objects.filter(attempt=self.attempt, rank=batch.worker)
        known = rows.values_list("step_time_s", "last_seq", "last_step").first()
        if known is None:
            Worker.objects.create(
                attempt=self.attempt, rank=batch.worker, last_seq=batch.seq, last_step=last_step, created_at=self.now,
                step_time_s=float(times.mean()) if len(times) else None, **fields,
            )  # fmt: skip
            return
        old, seq, step = known
        if len(times):
            new = float(times.mean())
            fields["step_time_s"] = new if old is None else old + SMOOTHING * (new - old)
        rows.update(last_seq=max(seq, batch.seq), last_step=max(step, last_step), **fields)

    def _touch_attempt(self) -> None:
        last = max(_last_step(b) for b in self.batches)
        last_step = Greatest(F("last_step"), last)
        Attempt.objects.filter(pk=self.attempt.pk).update(heartbeat_at=self.now, last_step=last_step)
        done = max(last, self.attempt.last_step) + 1
        if done != self.attempt.job.current_step and done > 0:
            Job.objects.filter(pk=self.attempt.job_id).update(current_step=done)
        notice = {"team_id": self.attempt.job.team_id, "job_id": self.attempt.job_id, "attempt_id": self.attempt.pk}
        transaction.on_commit(lambda: reported.send_robust(sender=Report, **notice), robust=True)
        for batch in self.batches:
            if batch.log:
                write = self._log_writer(batch)
                transaction.on_commit(write, robust=True)

    def _log_writer(self, batch: Batch) -> Any:
        return lambda: log_append(attempt_uuid=self.attempt.uuid, worker=batch.worker, lines=batch.log, now=self.now)

    def _alert(self, index: int, step: int) -> None:
        recent = Event.objects.filter(
            job_id=self.attempt.job_id, kind="attempt.nonfinite", at__gt=self.now - ALERT_EVERY
        )
        if recent.exists():
            return
        key = (
            JobShard.objects.filter(job_id=self.attempt.job_id, index=index)
            .values_list("shard__key", flat=True)
            .first()
        )
        event_append(
            team=self.attempt.job.team, job=self.attempt.job, kind="attempt.nonfinite", subject=self.attempt, now=self.now,
            actor=TRAINER, text=f"The loss of shard {key} is not finite at step {step:,}.", data={"shard": key, "step": step},
        )  # fmt: skip


class _ShardIndices:
    """`JobShard.index` by shard key, read once per transaction and only when a report needs it."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.table: dict[str, int] | None = None

    def of(self, batch: Batch) -> NDArray:
        """`JobShard.index` of each point [P]. Raises `Invalid` naming shards that the job does not have."""
        if not batch.num_points:
            return np.empty(0, np.int64)
        if self.table is None:
            rows = JobShard.objects.filter(job_id=self.job_id).order_by().values_list("shard__key", "index")
            self.table = dict(rows)
        places = np.array([self.table.get(key, -1) for key in batch.keys], np.int64)
        index: NDArray = places[batch.key_at]
        if (index < 0).any():
            strange = sorted({batch.keys[k] for k in batch.key_at[index < 0]})
            names = ", ".join(strange[:5]) + (" …" if len(strange) > 5 else "")
            known = ", ".join(itertools.islice(self.table, 5)) + (" …" if len(self.table) > 5 else "")
            raise Invalid(
                f"Column shards.shard: not a shard of this job: {names}. Its shards: {known}.",
                fields={"shards.shard": [f"Unknown: {names}."]},
            )
        return index


def _insert(attempt_id: int, batch: Batch, index: NDArray, now: dt.datetime) -> bool:
    """Whether the report is new. The unique key decides, so a retry costs one look into an index."""
    steps = np.concatenate([batch.step, batch.point_step])
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (None, None)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {Report._meta.db_table} (attempt_id, worker, seq, received_at, step_min, step_max, num_points, payload)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT (attempt_id, worker, seq) DO NOTHING",
            [attempt_id, batch.worker, batch.seq, connection.ops.adapt_datetimefield_value(now), low, high, batch.num_points,
             payload_of(batch, index)],
        )  # fmt: skip
        return bool(cursor.rowcount == 1)


def _last_step(batch: Batch) -> int:
    return max((int(a.max()) for a in (batch.step, batch.point_step) if len(a)), default=-1)


def _one(batch: Batch, name: str) -> NDArray:
    return batch.step_columns.get(name, np.full(len(batch.step), np.nan))


def _missing(batch: Batch) -> NDArray:
    """All True where the whole column was not sent, else all False."""
    return np.full(len(batch.step), "grad_norm" not in batch.step_columns)


def _column(batches: list[Batch], name: str) -> NDArray:
    return np.concatenate([_one(b, name) for b in batches])
