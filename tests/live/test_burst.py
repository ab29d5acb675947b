"""A burst of telemetry at a browser that takes frames slowly: it ends with every point (fault F1)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.test import Client
from django.utils import timezone

from jobs.models import Attempt
from jobs.services.report_form import report_parse
from jobs.services.reports import report_add
from tests.factories import make_cast, make_job
from tests.ingest.bodies import make_live_attempt, report
from tests.live.sockets import Socket, signed_in
from webapp.live.consumers import JobConsumer

pytestmark = pytest.mark.django_db(transaction=True)
NUM_REPORTS, NUM_STEPS = 50, 10  # of one point each: 500 points


class Browser:
    """What static/js/heatmap/model.js does with frames: apply what continues, else fetch. One shard, in the default view."""

    def __init__(self, client: Client, job: str) -> None:
        self.client, self.job = client, job
        self.seq, self.width, self.num_redrawn = -1, 1, 0
        self.cells: dict[int, tuple[float, int]] = {}  # first step of a bin -> mean loss, tokens

    async def take(self, frame: dict[str, Any]) -> None:
        if frame["type"] == "refetch" or (frame["type"] == "delta" and frame["prev"] > self.seq):
            await self.fetch()
        elif frame["type"] == "delta" and frame["seq"] > self.seq:
            assert frame["width"] == self.width or not self.cells
            self._show(frame, frame["bins"], [line[0] for line in frame["mean"]], [line[0] for line in frame["tokens"]])

    async def fetch(self) -> None:
        reply = await sync_to_async(self.client.get)(f"/api/v1/jobs/{self.job}/heatmap/?order=index")
        doc = json.loads(reply.content)
        self.cells = {}
        firsts = [doc["from"] + b * doc["width"] for b in range(doc["bins"])]
        self._show(doc, firsts, doc["mean"][0], doc["tokens"][0])

    def _show(self, document: dict[str, Any], firsts: list[int], mean: list[float], tokens: list[int]) -> None:
        self.seq, self.width = document["seq"], document["width"]
        self.num_redrawn += 1
        self.cells |= {first: (mean[at], tokens[at]) for at, first in enumerate(firsts)}


@sync_to_async
def send_burst(attempt: Attempt) -> int:
    """500 points in 50 reports, as fast as they are stored; the id of the last report."""
    for seq in range(NUM_REPORTS):
        points = [(seq * NUM_STEPS + s, "shard_000", float(seq * NUM_STEPS + s), 1) for s in range(NUM_STEPS)]
        batch = report_parse(json.dumps(report(0, seq, points=points)).encode())
        report_add(attempt=attempt, batch=batch, now=timezone.now())
    return int(attempt.reports.latest("pk").pk)


@sync_to_async
def make_world() -> tuple[Any, Attempt]:
    cast = make_cast()
    return cast.viewer, make_live_attempt(make_job(cast.team, status="queued"))[0]


async def test_five_hundred_points_at_once_all_reach_a_browser_that_takes_a_frame_in_half_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    viewer, attempt = await make_world()
    plain = JobConsumer._send_text

    async def slow(self: JobConsumer, text: str) -> None:
        await plain(self, text)
        await asyncio.sleep(0.5)  # the socket's buffer is full until the browser has drawn

    monkeypatch.setattr(JobConsumer, "_send_text", slow)
    client = await signed_in(viewer)
    socket = Socket(client, f"/ws/jobs/{attempt.job.uuid}/")
    assert await socket.open()
    browser = Browser(client, str(attempt.job.uuid))
    await socket.frame("hello")
    await browser.fetch()
    last = await send_burst(attempt)
    while browser.seq < last:
        await browser.take(await socket.next())
    await socket.leave()
    assert browser.num_redrawn < NUM_REPORTS / 2, "a frame was queued for every report"
    assert sum(tokens for _, tokens in browser.cells.values()) == NUM_REPORTS * NUM_STEPS
    for first, (mean, tokens) in browser.cells.items():
        assert mean == pytest.approx(first + (tokens - 1) / 2)  # every point's loss is its step
