"""Reports through the REST protocol: what is taken, what is refused, what a retry does."""

import pytest
from django.test import Client

from jobs.models import Report
from jobs.selectors.series import shard_series
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
