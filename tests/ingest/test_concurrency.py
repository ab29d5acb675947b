"""Many writers at once, as threads with connections of their own."""

import json
import threading

import pytest
from django.db import connection
from django.utils import timezone

from jobs.models import Report, Worker
from jobs.selectors.series import shard_series
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.ingest.bodies import make_live_attempt, report


@pytest.mark.django_db(transaction=True)
def test_writers_in_parallel_lose_no_addition_and_see_no_locked_database() -> None:
    attempt, _ = make_live_attempt(num_workers=4)
    errors: list[Exception] = []

    def write(worker: int) -> None:
        try:
            for seq in range(12):
                body = report(worker, seq, points=[(seq, "shard_000", 2.0, 1), (seq, "shard_001", 4.0, 1)])
                report_add(attempt=attempt, batch=report_parse(json.dumps(body).encode()), now=timezone.now())
        except Exception as error:  # noqa: BLE001  whatever it is, the test shows it
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert Report.objects.count() == 48
    assert sorted(Worker.objects.values_list("rank", "last_seq")) == [(rank, 11) for rank in range(4)]
    for level in range(4):
        series = shard_series(attempt.job, level=level)
        assert series.loss_sum.sum(axis=1).tolist() == [96.0, 192.0, 0.0]
