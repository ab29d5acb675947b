"""The fast path of the ASGI server: the same answers as the views, many reports in one commit, every one durable."""

import asyncio
import gzip
import json
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.db import OperationalError
from django.utils import timezone

from jobs.models import Attempt, Report
from jobs.selectors.series import shard_series
from jobs.services.attempts import attempt_open
from jobs.services.tokens import token_revoke
from tests.ingest.bodies import make_live_attempt, report
from webapp.api import report_writer
from webapp.asgi import application

pytestmark = pytest.mark.django_db(transaction=True)


async def send(attempt: Attempt, secret: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
    """Status, JSON and headers of one report through the ASGI application."""
    data = body if isinstance(body, bytes) else gzip.compress(json.dumps(body).encode())
    named = {"authorization": f"Bearer {secret}", "content-encoding": "gzip", "host": "testserver"} | headers
    scope = {
        "type": "http", "method": "POST", "path": f"/api/v1/attempts/{attempt.uuid}/reports/", "query_string": b"",
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in named.items()], "http_version": "1.1",
    }  # fmt: skip
    wire = ApplicationCommunicator(application, scope)
    await wire.send_input({"type": "http.request", "body": data[:50], "more_body": True})
    await wire.send_input({"type": "http.request", "body": data[50:]})
    start, end = await wire.receive_output(20), await wire.receive_output(20)
    return start["status"], json.loads(end["body"]), {k.decode(): v.decode() for k, v in start["headers"]}


live_attempt = sync_to_async(make_live_attempt)


async def test_reports_that_come_together_are_all_stored_and_rolled_up() -> None:
    attempt, secret = await live_attempt()
    bodies = [report(w, s, points=[(s, "shard_000", 2.0, 1)]) for w in range(2) for s in range(20)]
    answers = await asyncio.gather(*(send(attempt, secret, body) for body in bodies))
    assert [a[0] for a in answers] == [200] * 40
    again = await asyncio.gather(*(send(attempt, secret, body) for body in bodies[:5]))
    assert all(a[1]["duplicate"] for a in again)
    assert await sync_to_async(Report.objects.count)() == 40
    assert (await sync_to_async(shard_series)(attempt.job)).tokens.sum() == 40


async def test_a_refused_report_does_not_touch_those_beside_it() -> None:
    attempt, secret = await live_attempt()
    good, strange, far = report(0, 0), report(0, 1, points=[(0, "stranger", 1.0, 1)]), report(9, 0)
    answers = await asyncio.gather(*(send(attempt, secret, body) for body in (good, strange, far)))
    assert [a[0] for a in answers] == [200, 400, 400]
    assert await sync_to_async(Report.objects.count)() == 1


async def test_a_token_that_is_revoked_ends_at_once_though_it_was_known() -> None:
    attempt, secret = await live_attempt()
    assert (await send(attempt, secret, report(0, 0)))[0] == 200
    await sync_to_async(lambda: token_revoke(token=attempt.tokens.get(), now=timezone.now()))()
    status, body, _ = await send(attempt, secret, report(0, 1))
    assert (status, body["code"]) == (401, "bad_token")


async def test_the_codes_are_those_of_the_protocol() -> None:
    attempt, secret = await live_attempt()
    _, other = await live_attempt()
    assert (await send(attempt, "cf_nobody", report()))[0] == 401
    assert (await send(attempt, other, report()))[1]["code"] == "bad_token"
    assert (await send(attempt, secret, b"no gzip"))[1]["code"] == "bad_report"
    assert (await send(attempt, secret, b"{}", content_length="99999999"))[0] == 413
    assert (await send(attempt, secret, b"{}", content_encoding="br"))[0] == 415
    await sync_to_async(attempt_open)(job=attempt.job, num_workers=2, now=timezone.now())
    status, body, _ = await send(attempt, secret, report())
    assert (status, body["code"]) == (409, "attempt_superseded")


async def test_a_busy_database_asks_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(**_: Any) -> None:
        raise OperationalError("database is locked")

    attempt, secret = await live_attempt()
    monkeypatch.setattr(report_writer, "reports_store", locked)
    status, body, headers = await send(attempt, secret, report())
    assert (status, body["code"], headers["retry-after"]) == (503, "busy", "1")


async def test_a_full_queue_asks_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt, secret = await live_attempt()
    monkeypatch.setattr(report_writer.ReportWriter, "offer", lambda self, order: False)
    assert (await send(attempt, secret, report()))[0] == 503
