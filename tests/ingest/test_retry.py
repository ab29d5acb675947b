"""A batch that is sent again costs the same however much is stored: no statement of it reads the history (fault I2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from jobs.models import Attempt, Report
from tests.factories import make_job
from tests.ingest.bodies import make_live_attempt, post, report

pytestmark = pytest.mark.django_db
TABLE = Report._meta.db_table
STORED = 100_000
COLUMNS = "attempt_id, worker, seq, received_at, step_min, step_max, num_points, payload"
BATCH = [(step, f"shard_{shard:03d}", 2.0, 1) for step in range(10) for shard in range(100)]

Statement = tuple[str, Any]


def store_reports(attempt: Attempt, num_reports: int) -> None:
    """So many reports of rank 1 with one statement, as if it had sent them for days."""
    series = (
        "SELECT g FROM generate_series(1, %s) AS t(g)"
        if connection.vendor == "postgresql"
        else "WITH RECURSIVE t(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM t WHERE g < %s) SELECT g FROM t"
    )
    blob = "'x'::bytea" if connection.vendor == "postgresql" else "x'78'"
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {TABLE} ({COLUMNS}) SELECT %s, 1, g, %s, g, g, 1000, {blob} FROM ({series}) AS s",
            [attempt.pk, connection.ops.adapt_datetimefield_value(attempt.created_at), num_reports],
        )
        cursor.execute(f"ANALYZE {TABLE}")


@contextmanager
def statements() -> Iterator[list[Statement]]:
    """The statements of the block, with their parameters."""
    seen: list[Statement] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if not many and sql.split(maxsplit=1)[0] in {"SELECT", "INSERT", "UPDATE", "DELETE"}:
            seen.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield seen


def plan_of(statement: Statement) -> str:
    """How the database would carry it out."""
    word = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        cursor.execute(f"{word} {statement[0]}", statement[1])
        return "\n".join(str(row[-1]) for row in cursor.fetchall())


def work_of(action: Callable[[], Any]) -> int:
    """Rows of the reports' table that `action` reads (PostgreSQL), or instructions that the database executes (SQLite)."""
    if connection.vendor == "postgresql":
        before = rows_read()
        action()
        return rows_read() - before
    ticks = [0]
    connection.connection.set_progress_handler(lambda: ticks.__setitem__(0, ticks[0] + 1), 10)
    try:
        action()
    finally:
        connection.connection.set_progress_handler(None, 0)
    return 10 * ticks[0]


def rows_read() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = %s", [TABLE])
        return int(cursor.fetchone()[0])


def test_a_batch_of_a_thousand_points_sent_five_times_reads_no_history(client: Client) -> None:
    attempt, secret = make_live_attempt(make_job(status="queued", num_shards=100))
    body = report(0, 0, points=BATCH)
    assert not post(client, attempt, secret, "reports", body).json()["duplicate"]

    def again() -> None:
        reply = post(client, attempt, secret, "reports", body)
        assert (reply.status_code, reply.json()["duplicate"]) == (200, True)

    again()
    little = work_of(again)
    store_reports(attempt, STORED)
    again()
    with statements() as seen:
        much = work_of(again)
    again()
    assert much <= little + 100, f"{little} before, {much} with {STORED:,} reports more"
    assert Report.objects.filter(worker=0).count() == 1
    about = [s for s in seen if TABLE in s[0]]
    assert about, "no statement named the reports"
    plans = [plan_of(s) for s in about]
    assert not [p for p in plans if f"SCAN {TABLE}" in p or f"Seq Scan on {TABLE}" in p]
