"""Reports through the REST protocol: what is taken, what is refused, what a retry does."""

import pytest
from django.test import Client

from jobs.models import Report
from jobs.selectors.series import shard_series
from tests.factories import make_cast, make_job
from tests.ingest.bodies import make_live_attempt, post, report

pytestmark = pytest.mark.django_db


def test_a_report_is_stored_and_added_up_over_ranks(client: Client) -> None:
    attempt, secret = make_live_attempt()
    first = post(client, attempt, secret, "reports", report(0, 0, points=[(0, "shard_000", 30.0, 10), (1, "shard_001", 8.0, 4)]))
    assert first.status_code == 200, first.content
    assert first.json()["accepted"] == {"steps": 0, "shards": 2}
    post(client, attempt, secret, "reports", report(1, 0, points=[(0, "shard_000", 10.0, 10)]), packed=True)
    series = shard_series(attempt.job)
    assert series.keys == ("shard_000", "shard_001", "shard_002")
    assert series.loss_sum.tolist() == [[40.0, 0.0], [0.0, 8.0], [0.0, 0.0]]
    assert series.tokens.tolist() == [[20, 0], [0, 4], [0, 0]]
    assert Report.objects.count() == 2


def test_the_heatmap_says_what_was_reported(client: Client) -> None:
    cast = make_cast()
    attempt, secret = make_live_attempt(make_job(cast.team, status="queued"))
    points = [(0, "shard_000", 30.0, 10), (0, "shard_001", "nan", 4), (1, "shard_002", 0.0, 0)]
    steps = {"step": [0, 1], "step_time_s": [0.2, 0.3], "grad_norm": [None, 1.0], "nonfinite": {"grad_norm": {"inf": [0]}}}
    post(client, attempt, secret, "reports", report(0, 0, points=points, steps=steps))
    client.force_login(cast.viewer)
    heat = client.get(f"/api/v1/jobs/{attempt.job.uuid}/heatmap/").json()
    assert heat["mean"] == [[3.0, None], [None, None], [None, None]]
    assert heat["tokens"] == [[10, None], [0, None], [None, 0]]
    assert heat["nonfinite"] == [[1, 0, 1]]
    assert not heat["healthy"]
    times = client.get(f"/api/v1/jobs/{attempt.job.uuid}/workers/").json()
    assert times["mean_s"][0] == [0.2, 0.3]
    assert times["nonfinite"] == [[0, 0, 1]]
    assert client.get(f"/api/v1/jobs/{attempt.job.uuid}/series/").json()["all"] == [3.0, None]
    assert client.get(f"/api/v1/jobs/{attempt.job.uuid}/marks/").json()["marks"] == []
    lines = client.get(f"/api/v1/jobs/{attempt.job.uuid}/heatmap.csv").content.decode().splitlines()
    assert lines[1] == "shard_000,cat_0,0,0,3,3,3,10,0"
    client.force_login(cast.outsider)
    assert client.get(f"/api/v1/jobs/{attempt.job.uuid}/heatmap/").status_code == 404
