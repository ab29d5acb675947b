"""Sending what waits in an outbox, in order, and judging every answer by the protocol's status table."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from trainer_client import transport as http
from trainer_client.outbox import Item, Outbox
from trainer_client.protocol import Directive, ProtocolError
from trainer_client.reportsplit import split_report

log = logging.getLogger("counterflow.delivery")

FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.5, 30.0
AUTH_RETRY_S = 15.0
WARN_EVERY_S = 60.0


class Warner:
    """Log lines of one kind of trouble at most once a minute."""

    def __init__(self) -> None:
        self._last: dict[str, float] = {}

    def __call__(self, key: str, text: str) -> None:
        now = time.monotonic()
        if now - self._last.get(key, -WARN_EVERY_S) >= WARN_EVERY_S:
            self._last[key] = now
            log.warning("%s", text)


class Delivery:
    """One outbox to one server; used by the reporter's thread only (`superseded` may be read by any)."""

    def __init__(
        self,
        outbox: Outbox,
        transport: http.Transport,
        *,
        interval_s: float,
        warn: Warner,
        on_directives: Callable[[list[Directive]], None] | None,
    ) -> None:
        self._outbox, self._transport, self._warn, self._on_directives = outbox, transport, warn, on_directives
        self.interval_s = interval_s  # what the server asks for
        self.failures = 0
        self.next_try_at = 0.0
        self.last_sent_at = time.monotonic()
        self.confirmed_reports = 0
        self.superseded = threading.Event()

    def rest(self, seconds: float) -> None:
        """Try nothing for a while."""
        self.next_try_at = time.monotonic() + seconds

    def deliver(self) -> None:
        """Send waiting items in order until one does not get through."""
        while not self.superseded.is_set():
            item = self._outbox.first()
            if item is None or time.monotonic() < self.next_try_at:
                return
            if not self._send(item):
                return

    def _send(self, item: Item) -> bool:
        """Send one item; True when the next one may be tried at once."""
        reply = self._transport.post(item.kind, item.payload())
        self.last_sent_at = time.monotonic()
        if reply.kind == http.OK:
            self._confirmed(item, reply.body)
            return True
        if reply.kind == http.SUPERSEDED:
            self._end_of_attempt(reply.detail)
            return False
        if reply.kind == http.TOO_LARGE:
            return self._split(item, reply.detail)
        if reply.kind == http.BAD:
            self._outbox.reject(item, reply.detail)
            self._warn("bad", f"the server refuses a {item.kind} message; kept in rejected/: {reply.detail}")
            return True
        self._back_off(reply)
        return False

    def _confirmed(self, item: Item, body: dict[str, Any]) -> None:
        self._outbox.done(item)
        self.failures = 0
        self.confirmed_reports += item.kind == "reports"
        with contextlib.suppress(TypeError, ValueError):
            self.interval_s = min(5.0, max(0.05, float(body.get("report_interval_s") or self.interval_s)))
        directives = []
        for raw in body.get("directives") or []:
            try:
                directives.append(Directive.parse(raw))
            except ProtocolError as error:
                self._warn("directive", str(error))
        if directives and self._on_directives is not None:
            self._on_directives(directives)

    def _end_of_attempt(self, detail: str) -> None:
        """A newer attempt exists: nothing of this one is wanted any more, training is to stop."""
        log.warning("this attempt is superseded: %s", detail)
        for item in self._outbox:
            self._outbox.reject(item, detail)
        self.superseded.set()

    def _split(self, item: Item, detail: str) -> bool:
        """Too large: cut the report in two, or set it aside when there is nothing to cut."""
        halves = None
        if item.kind == "reports":
            seq = self._outbox.take_seq()
            halves = split_report(item.body(), seq)
        if halves is None:
            self._outbox.reject(item, detail)
            self._warn("bad", f"a {item.kind} message is too large to be sent; kept in rejected/")
            return True
        # The new half is kept first: a crash between the two writes then sends rows twice at worst, never not at all.
        self._outbox.append(item.kind, halves[1])
        self._outbox.replace(item, halves[0])
        return True

    def _back_off(self, reply: http.Reply) -> None:
        """Wait before the next try; doubled each time, with jitter so that many trainers do not come back at once."""
        self.failures += 1
        wait_s = min(LAST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self.failures - 1, 10)) * random.uniform(0.5, 1.0)
        if reply.kind == http.AUTH:
            wait_s = max(wait_s, AUTH_RETRY_S)
        if reply.retry_after_s is not None:
            wait_s = reply.retry_after_s
        self.rest(wait_s)
        self._warn(reply.kind, f"server: {reply.detail}; {len(self._outbox)} messages wait, training goes on")
