"""Own times of workers: from a report to the worker's row and the rollups."""

from __future__ import annotations

import numpy as np
import pytest
from django.test import Client

from jobs.models import Attempt, Worker
from jobs.planes import WORKER, planes_empty, planes_pack, planes_unpack
from jobs.selectors.workers import step_times
from tests.ingest.bodies import make_live_attempt, post, report

pytestmark = pytest.mark.django_db


def test_own_time_and_share_of_a_worker_are_stored_with_it_and_over_steps(client: Client) -> None:
    """A step whose own time or number of micro-batches is missing counts for the wall time only."""
    attempt, secret = make_live_attempt()
    steps = {
        "step": [0, 1, 2], "step_time_s": [0.9, 0.9, 0.9], "compute_s": [0.8, 0.4, None], "num_micro": [4, 2, 2],
        "nonfinite": {},
    }  # fmt: skip
    assert post(client, attempt, secret, "reports", report(worker=1, points=[], steps=steps)).status_code == 200
    worker = Worker.objects.get(attempt=attempt, rank=1)
    assert (worker.micro_time_s, worker.num_micro) == (pytest.approx(0.2), 2)
    times = step_times(attempt.job, attempt=Attempt.objects.get(pk=attempt.pk), width=4)
    assert (times.own[1, 0], times.micro[1, 0], times.mean[1, 0]) == pytest.approx((0.6, 0.2, 0.9))
    assert np.isnan(times.micro[0, 0])
    idle = {"step": [3], "step_time_s": [0.9], "compute_s": [0.0], "num_micro": [0], "nonfinite": {}}
    assert post(client, attempt, secret, "reports", report(worker=1, seq=1, points=[], steps=idle)).status_code == 200
    worker.refresh_from_db()
    assert (worker.micro_time_s, worker.num_micro) == (pytest.approx(0.2), 0)


def test_a_rollup_row_from_before_own_times_is_read_as_one_without_them() -> None:
    old = planes_empty(WORKER[:7], 1, 2)
    row = planes_unpack(WORKER, planes_pack(WORKER[:7], old, 0), 2)
    assert row["num_own"].tolist() == [0, 0]
    assert row["compute_sum_s"].shape == (2,)
