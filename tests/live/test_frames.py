"""No frame grows beyond what a socket carries at once, however many shards a job has (fault F3)."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from jobs.selectors.heatmap import heatmap
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.factories import make_job
from tests.ingest.bodies import make_live_attempt, report
from webapp.live.frames import MAX_BYTES, DeltaSource

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("num_shards", "kind"), [(300, "delta"), (1_500, "refetch")])
def test_a_frame_too_large_for_a_socket_asks_the_browser_to_fetch(num_shards: int, kind: str) -> None:
    job = make_job(status="queued", num_shards=num_shards)
    attempt, _ = make_live_attempt(job)
    source = DeltaSource(job.pk)
    source.begin()
    points = [(s, f"shard_{i:03d}", 1234.5678 + i / 7, 321) for s in range(4) for i in range(num_shards)]
    report_add(attempt=attempt, batch=report_parse(json.dumps(report(points=points)).encode()), now=timezone.now())
    frame = source.next()
    assert frame is not None
    assert json.loads(frame)["type"] == kind
    assert len(frame) <= MAX_BYTES < 64 * 1024


def test_sockets_and_rest_agree_on_the_width_however_many_shards_there_are() -> None:
    job = make_job(status="queued", num_shards=1_600)
    attempt, _ = make_live_attempt(job)
    points = [(s, "shard_000", 1.0, 1) for s in range(0, 600, 5)]
    report_add(attempt=attempt, batch=report_parse(json.dumps(report(points=points)).encode()), now=timezone.now())
    assert DeltaSource(job.pk).begin()["width"] == heatmap(job).window.width
