"""Processes that share the database: every command has one holder and nobody hears of a lock (fault E11)."""

from __future__ import annotations

import json
import multiprocessing
import time
import traceback
from typing import Any

import pytest
from django.db import connections
from django.utils import timezone

from jobs.models import Attempt, Report
from jobs.services.commands import command_claim, command_issue
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.factories import make_job
from tests.ingest.bodies import make_live_attempt, report

NUM_CLAIMERS, NUM_COMMANDS = 4, 40
ROWS_PER_S = 200.0
FORK = multiprocessing.get_context("fork")


def claim_all(ids: list[int], start: Any, answers: Any) -> None:
    """One process: try to get every command; (ids got, nothing) or (nothing, the error)."""
    try:
        start.wait(60)
        mine = [pk for pk in ids if command_claim(command_id=pk, now=timezone.now()) is not None]
        answers.put((mine, ""))
    except Exception:  # noqa: BLE001  the test shows whatever it was
        answers.put(([], traceback.format_exc()))
    connections.close_all()


def write_on(attempt_id: int, start: Any, stop: Any, answers: Any) -> None:
    """One process: a report of telemetry two hundred times a second, each its own transaction."""
    try:
        attempt, seq = Attempt.objects.get(pk=attempt_id), 0
        start.wait(60)
        begun = time.monotonic()
        while not stop.is_set():
            batch = report_parse(json.dumps(report(0, seq, points=[(seq, "shard_000", 2.0, 1)])).encode())
            report_add(attempt=attempt, batch=batch, now=timezone.now())
            seq += 1
            time.sleep(max(0.0, begun + seq / ROWS_PER_S - time.monotonic()))
        answers.put((seq, ""))
    except Exception:  # noqa: BLE001  as above
        answers.put((0, traceback.format_exc()))
    connections.close_all()


@pytest.mark.django_db(transaction=True)
def test_four_processes_claim_each_command_once_beside_a_writer_and_meet_no_locked_database() -> None:
    job = make_job(status="queued")
    attempt, _ = make_live_attempt(job)
    ids = [command_issue(job=job, kind="launch", key=f"k{i}", now=timezone.now()).pk for i in range(NUM_COMMANDS)]
    start, stop = FORK.Barrier(NUM_CLAIMERS + 1), FORK.Event()
    claims, written = FORK.Queue(), FORK.Queue()
    connections.close_all()  # a connection must not be shared over a fork
    writer = FORK.Process(target=write_on, args=(attempt.pk, start, stop, written))
    claimers = [FORK.Process(target=claim_all, args=(ids, start, claims)) for _ in range(NUM_CLAIMERS)]
    for process in (writer, *claimers):
        process.start()
    answers = [claims.get(timeout=60) for _ in claimers]
    stop.set()
    num_reports, trouble = written.get(timeout=30)
    for process in (writer, *claimers):
        process.join(10)
    assert [error for _, error in answers if error] + ([trouble] if trouble else []) == []
    assert sorted(pk for mine, _ in answers for pk in mine) == ids
    assert Report.objects.filter(attempt=attempt).count() == num_reports > 0
