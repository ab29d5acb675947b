"""Reports straight from the ASGI server to the writer, without Django's request, middleware and views in between.

A request costs a few milliseconds in there and well under one here, and reports are nearly all of the traffic. Whatever is not
`POST /api/v1/attempts/{uuid}/reports/` goes on to Django. Errors, codes and bodies are those of `webapp/api/trainer.py`.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import Error, connection
from django.utils import timezone

from jobs.errors import DomainError
from jobs.services.report_form import Batch, report_parse
from jobs.services.reports import Incoming, TokenEnded
from webapp.api.report_writer import Order, Outcome, writer
from webapp.api.trainer_door import (
    MAX_BYTES,
    Answer,
    Refusal,
    Speaker,
    answer_refusal,
    answer_report,
    body_unpack,
    busy,
    refusal_of,
    speaker_find,
    speaker_forget,
    speaker_known,
)
from webapp.metrics import REQUEST_SECONDS, REQUESTS

PATH = re.compile(r"/api/v1/attempts/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/reports/")
ROUTE = "api/v1/attempts/<uuid:attempt>/reports/"
INLINE_BYTES = 96 * 1024  # a body below this is read in the event loop: a thread would cost more than it saves

App = Callable[[Any, Any, Any], Awaitable[None]]
_threads = ThreadPoolExecutor(1, thread_name_prefix="report-gate")


class ReportGate:
    """ASGI application around another."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        found = PATH.fullmatch(scope["path"]) if scope.get("method") == "POST" else None
        if found is None:
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        answer = await self._answered(uuid.UUID(found[1]), scope, receive)
        await _send(send, answer)
        REQUESTS.labels("POST", ROUTE, answer[0]).inc()
        REQUEST_SECONDS.labels(ROUTE).observe(time.perf_counter() - started)

    async def _answered(self, attempt: uuid.UUID, scope: Any, receive: Any) -> Answer:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        try:
            return await self._take(attempt, headers, receive)
        except Refusal as refusal:
            return answer_refusal(refusal)
        except DomainError as error:
            return answer_refusal(refusal_of(error))
        except Error:
            return answer_refusal(busy("The database is busy; nothing was stored. Keep the batch and try again."))

    async def _take(self, attempt: uuid.UUID, headers: dict[bytes, str], receive: Any) -> Answer:
        authorization = headers.get(b"authorization", "")
        speaker = speaker_known(authorization, attempt) or await _speaker(authorization, attempt)
        raw = await _body(receive, headers)
        batch = await _batch(raw, headers.get(b"content-encoding", "").lower())
        outcome = await _stored(Incoming(speaker.attempt_id, batch, speaker.token_id))
        if isinstance(outcome, TokenEnded):
            speaker_forget(authorization)
        if isinstance(outcome, DomainError | Error):
            raise outcome
        if isinstance(outcome, Exception):  # the writer has logged it
            raise Refusal(
                500, "server_error", "The report could not be stored; the server's log says why. Keep the batch."
            )
        return answer_report(outcome, timezone.now())


async def _speaker(authorization: str, attempt: uuid.UUID) -> Speaker:
    """Look the token up, in a thread."""

    def look() -> Speaker:
        try:
            return speaker_find(authorization, attempt, timezone.now())
        finally:
            connection.close()

    return await asyncio.get_running_loop().run_in_executor(_threads, look)


async def _body(receive: Any, headers: dict[bytes, str]) -> bytes:
    """The body as sent. Raises `Refusal` 413 as soon as it is too long."""
    length = headers.get(b"content-length", "0")
    too_large = Refusal(413, "too_large", f"A body holds at most {MAX_BYTES:,} bytes; split the batch.")
    if length.isdecimal() and int(length) > MAX_BYTES:
        raise too_large
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(400, "bad_report", "The connection was closed before the body was complete.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BYTES:
            raise too_large
        if not message.get("more_body"):
            return b"".join(parts)


async def _batch(raw: bytes, encoding: str) -> Batch:
    if len(raw) < (INLINE_BYTES // 4 if encoding else INLINE_BYTES):
        return report_parse(body_unpack(raw, encoding))
    return await asyncio.get_running_loop().run_in_executor(_threads, lambda: report_parse(body_unpack(raw, encoding)))


async def _stored(report: Incoming) -> Outcome:
    """What became of the report, after the commit that holds it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Outcome] = loop.create_future()

    def done(outcome: Outcome) -> None:
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(outcome))

    if not writer().offer(Order(report, done)):
        raise busy("Too many reports wait to be stored. Keep the batch and try again.")
    return await future


async def _send(send: Any, answer: Answer) -> None:
    status, body, headers = answer
    raw = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    raw.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
