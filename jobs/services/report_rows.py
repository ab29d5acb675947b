"""The statements of `reports_store`, in plain SQL that SQLite and PostgreSQL both take.

They run a hundred times a second; putting them together in the ORM took three quarters of the time of storing a report.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.db import connection
from numpy.typing import NDArray

from jobs.errors import Invalid
from jobs.models import ApiToken, Attempt, Directive, Job, JobShard, Report, Worker
from jobs.services.report_form import Batch
from jobs.services.report_store import payload_of

SMOOTHING = 0.2  # weight of a new report in a worker's step time
CACHED_ATTEMPTS = 256
GAP = dt.timedelta(seconds=60)  # a longer one between reports: the server was away, or could not be reached

# Attempt -> shard key -> JobShard.index, which never changes. By UUID: an integer id may come again after a rollback.
_indices: dict[uuid.UUID, dict[str, int]] = {}


def report_insert(attempt_id: int, batch: Batch, index: NDArray, now: dt.datetime) -> bool:
    """Whether the report is new. The unique key decides, so a retry costs one look into an index."""
    steps = np.concatenate([batch.step, batch.point_step])
    low, high = (int(steps.min()), int(steps.max())) if len(steps) else (None, None)
    columns = "attempt_id, worker, seq, received_at, step_min, step_max, num_points, payload"
    values = [attempt_id, batch.worker, batch.seq, _time(now), low, high, batch.num_points, payload_of(batch, index)]
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {Report._meta.db_table} ({columns}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"
            " ON CONFLICT (attempt_id, worker, seq) DO NOTHING",
            values,
        )
        return bool(cursor.rowcount == 1)


def living_tokens(ids: set[int | None], now: dt.datetime) -> set[int | None]:
    """Those of the tokens that are neither revoked nor expired; None stands for a caller that was let in otherwise."""
    asked = [i for i in ids if i is not None]
    if not asked:
        return {None}
    rows = _all(
        f"SELECT id FROM {ApiToken._meta.db_table} WHERE id IN ({_marks(asked)}) AND revoked_at IS NULL"
        " AND (expires_at IS NULL OR expires_at > %s)",
        [*asked, _time(now)],
    )
    return {None, *(row[0] for row in rows)}


@dataclass(frozen=True)
class Writing:
    """What storing reports needs to know of an attempt."""

    pk: int
    uuid: uuid.UUID
    job_id: int
    team_id: int
    fence: int
    newest_fence: int  # of the job
    world_size: int
    last_step: int
    current_step: int  # of the job
    planned_steps: int | None
    has_orders: bool  # directives that are not acknowledged


def attempts_locked(ids: set[int]) -> list[Writing]:
    """The attempts, locked against other writers, in one order for all so that two groups cannot wait for each other."""
    asked = list(ids)
    attempt, job, directive = (model._meta.db_table for model in (Attempt, Job, Directive))
    lock = " FOR UPDATE OF a" if connection.features.has_select_for_update else ""
    rows = _all(
        f"SELECT a.id, a.uuid, a.job_id, j.team_id, a.fence, (SELECT MAX(b.fence) FROM {attempt} b WHERE b.job_id = a.job_id),"
        " a.world_size, a.last_step, j.current_step, a.planned_steps,"
        f" EXISTS (SELECT 1 FROM {directive} d WHERE d.attempt_id = a.id AND d.status IN ('issued', 'delivered'))"
        f" FROM {attempt} a JOIN {job} j ON j.id = a.job_id WHERE a.id IN ({_marks(asked)}) ORDER BY a.id{lock}",
        asked,
    )
    # SQLite gives a UUID as text and a truth as 0 or 1.
    return [Writing(*(row[0], uuid.UUID(str(row[1])), *row[2:10], bool(row[10]))) for row in rows]


def workers_touch(attempt: Writing, batches: list[Batch], now: dt.datetime) -> None:
    """Heartbeat, sequence, step and smoothed times of every worker that reported."""
    table = Worker._meta.db_table
    ranks = sorted({b.worker for b in batches})
    rows = _all(
        f"SELECT id, rank, last_seq, last_step, step_time_s, micro_time_s, num_micro FROM {table}"
        f" WHERE attempt_id = %s AND rank IN ({_marks(ranks)})",
        [attempt.pk, *ranks],
    )
    known = {row[1]: row for row in rows}
    changes: list[tuple[Any, ...]] = []
    for rank in ranks:
        mine = [b for b in batches if b.worker == rank]
        fresh = None if rank in known else _worker_new(attempt, rank, now)
        pk, _, seq, step, time_s, micro_s, share = known.get(rank) or (fresh, rank, -1, -1, None, None, None)
        for batch in mine:
            seq, step = max(seq, batch.seq), max(step, last_step(batch))
            time_s = _smoothed(time_s, batch.step_columns.get("step_time_s", np.empty(0)))
            micro_s, share = _smoothed(micro_s, own_times(batch)), newest_share(batch, share)
        system = next((json.dumps(b.system) for b in reversed(mine) if b.system), None)
        changes.append((seq, step, time_s, micro_s, share, _time(now), system, pk))
    with connection.cursor() as cursor:
        cursor.executemany(
            f"UPDATE {table} SET last_seq = %s, last_step = %s, step_time_s = %s, micro_time_s = %s, num_micro = %s,"
            " heartbeat_at = %s,"
            " system = COALESCE(%s, system) WHERE id = %s",
            changes,
        )


def attempt_touch(attempt: Writing, last: int, busy: bool, now: dt.datetime) -> None:
    """Heartbeat and newest step of the attempt, steps done of its job. The attempt is locked, so `last` cannot be outdated.

    `busy`: one of its workers says that it does something else than steps.
    """
    columns = {"heartbeat_at": _time(now), "last_step": last}
    if last > attempt.last_step:
        columns["stepped_at"] = _time(now)
    if busy:
        columns["busy_at"] = _time(now)
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {Attempt._meta.db_table} SET {', '.join(f'{name} = %s' for name in columns)},"
            " heard_since = CASE WHEN heartbeat_at IS NULL OR heartbeat_at < %s THEN %s ELSE heard_since END WHERE id = %s",
            [*columns.values(), _time(now - GAP), _time(now), attempt.pk],
        )
        if last >= 0 and last + 1 != attempt.current_step:
            cursor.execute(
                f"UPDATE {Job._meta.db_table} SET current_step = %s WHERE id = %s", [last + 1, attempt.job_id]
            )


def shard_indices(attempt: Writing, batch: Batch) -> NDArray:
    """`JobShard.index` of each point [P]. Raises `Invalid` naming shards that the job does not have."""
    if not batch.num_points:
        return np.empty(0, np.int64)
    table = _indices.get(attempt.uuid) or _indices_read(attempt)
    places = np.array([table.get(key, -1) for key in batch.keys], np.int64)
    if (places[batch.key_at] < 0).any():  # a shard may have joined the job since
        table = _indices_read(attempt)
        places = np.array([table.get(key, -1) for key in batch.keys], np.int64)
    index: NDArray = places[batch.key_at]
    if (index < 0).any():
        strange = sorted({batch.keys[k] for k in batch.key_at[index < 0]})
        raise Invalid(
            f"Column shards.shard: not a shard of this job: {_few(strange)}. Its shards: {_few(list(table))}.",
            fields={"shards.shard": [f"Unknown: {_few(strange)}."]},
        )
    return index


def last_step(batch: Batch) -> int:
    """The highest step of a report, -1 for a heartbeat."""
    return max((int(a.max()) for a in (batch.step, batch.point_step) if len(a)), default=-1)


def _indices_read(attempt: Writing) -> dict[str, int]:
    if len(_indices) >= CACHED_ATTEMPTS:
        _indices.clear()
    rows = JobShard.objects.filter(job_id=attempt.job_id).order_by().values_list("shard__key", "index")
    table = _indices[attempt.uuid] = dict(rows)
    return table


def _worker_new(attempt: Writing, rank: int, now: dt.datetime) -> int:
    return int(Worker.objects.create(attempt_id=attempt.pk, rank=rank, created_at=now).pk)


def own_times(batch: Batch) -> NDArray:
    """Own seconds for one micro-batch, of the steps that had some and were measured."""
    nothing = np.full(len(batch.step), np.nan)
    own, counts = (batch.step_columns.get(name, nothing) for name in ("compute_s", "num_micro"))
    known = np.isfinite(own) & np.isfinite(counts) & (counts > 0)
    times: NDArray = own[known] / counts[known]
    return times


def newest_share(batch: Batch, before: float | None) -> float | None:
    """Micro-batches of the newest step in the batch that tells them; none is a number, too."""
    counts = batch.step_columns.get("num_micro", np.empty(0))
    counts = counts[np.isfinite(counts)]
    return float(counts[-1]) if len(counts) else before


def _smoothed(before: float | None, times: NDArray) -> float | None:
    times = times[np.isfinite(times)]
    if not len(times):
        return before
    now = float(times.mean())
    return now if before is None else before + SMOOTHING * (now - before)


def _all(statement: str, values: list[Any]) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement, values)
        return list(cursor.fetchall())


def _marks(values: list[Any]) -> str:
    return ",".join(["%s"] * len(values))


def _time(moment: dt.datetime) -> Any:
    return connection.ops.adapt_datetimefield_value(moment)


def _few(names: list[str]) -> str:
    return ", ".join(itertools.islice(names, 5)) + (" …" if len(names) > 5 else "")
