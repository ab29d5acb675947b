"""Directives on rank 0 between their arrival and the control point that applies them.

`add_shard` needs data: it is fetched in its own thread, its checksum compared, and only then is the directive ready, so
that no rank ever waits for a download.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from itertools import takewhile

from trainer_client.protocol import Ack, Directive
from trainer_client.transport import FetchError

log = logging.getLogger("counterflow.inbox")

FETCH_TRIES = 6
FIRST_WAIT_S = 0.5
LEAVING = frozenset({"resize", "drain", "stop"})  # a machine may be taken soon: nothing is waited for


@dataclass(frozen=True, slots=True)
class ReadyDirective:
    """A directive with everything it needs; `data` are the verified bytes of `add_shard`."""

    directive: Directive
    data: bytes | None = None


class DirectiveInbox:
    """Thread-safe; each id is taken once however often the server repeats it, in the order of arrival."""

    def __init__(self, fetch: Callable[[str], bytes] | None, acknowledge: Callable[[Ack], None]) -> None:
        self._fetch = fetch
        self._acknowledge = acknowledge
        self._lock = threading.Lock()
        self._order: list[str] = []
        self._ready: dict[str, ReadyDirective] = {}
        self._seen: dict[str, Ack | None] = {}

    def receive(self, directives: list[Directive]) -> None:
        """Take in what a reply carried. A repeated id whose answer was given is answered again (that one got lost)."""
        for directive in directives:
            with self._lock:
                known = directive.id in self._seen
                answer = self._seen.setdefault(directive.id, None)
                if not known:
                    self._order.append(directive.id)
            if known and answer is not None:
                self._acknowledge(answer)
            elif not known:
                self._prepare(directive)

    def remember(self, ack: Ack) -> None:
        """Note the answer to a directive (also one applied in an earlier life), so that it is not done twice."""
        with self._lock:
            self._seen[ack.id] = ack

    def next_due(self, step: int, held: bool = False, only: Container[str] | None = None) -> ReadyDirective | None:
        """The first that may be applied before `step`, in order of arrival. Taken out for good.

        A run that is `held` reaches no later step, so `resume` is due then whatever step it names. With `only`, nothing that
        came behind an action not in it, but for orders to leave.
        """
        with self._lock:
            keys = self._due_keys(step, held, only)
            if not keys:
                return None
            self._order.remove(keys[0])
            return self._ready.pop(keys[0])

    def anything_due(self, step: int, held: bool = False, only: Container[str] | None = None) -> bool:
        """A cheap look for the control point of every step."""
        if not self._ready:
            return False
        with self._lock:
            return bool(self._due_keys(step, held, only))

    def _due_keys(self, step: int, held: bool, only: Container[str] | None) -> list[str]:
        due = [key for key in self._order if key in self._ready and self._is_due(key, step, held)]
        if only is None:
            return due
        front = list(takewhile(lambda key: self._ready[key].directive.action in only, due))
        return front + [key for key in due[len(front) :] if self._ready[key].directive.action in LEAVING]

    def _is_due(self, key: str, step: int, held: bool) -> bool:
        directive = self._ready[key].directive
        return directive.not_before_step <= step or (held and directive.action == "resume")

    def _prepare(self, directive: Directive) -> None:
        if directive.action != "add_shard":
            self._set_ready(ReadyDirective(directive))
            return
        threading.Thread(target=self._download, args=(directive,), name="counterflow-fetch", daemon=True).start()

    def _set_ready(self, item: ReadyDirective) -> None:
        with self._lock:
            self._ready[item.directive.id] = item

    def _download(self, directive: Directive) -> None:
        """Fetch and verify the samples; a lasting failure is answered `failed` and changes nothing."""
        why = "no server to fetch the samples from"
        for attempt in range(FETCH_TRIES if self._fetch else 0):
            try:
                data = self._verified(directive)
            except FetchError as error:
                why = str(error)
                if error.permanent:
                    break
                time.sleep(FIRST_WAIT_S * 2**attempt)
            else:
                self._set_ready(ReadyDirective(directive, data))
                return
        log.warning("directive %s: samples not fetched: %s", directive.id, why)
        ack = Ack(directive.id, "failed", None, f"samples not fetched: {why}")
        with self._lock:
            self._order.remove(directive.id)
            self._seen[directive.id] = ack
        self._acknowledge(ack)

    def _verified(self, directive: Directive) -> bytes:
        url, expected = directive.args.get("url"), str(directive.args.get("sha256", ""))
        if not isinstance(url, str) or not expected:
            raise FetchError("the directive names no url or no sha256", permanent=True)
        assert self._fetch is not None
        data = self._fetch(url)
        found = hashlib.sha256(data).hexdigest()
        if found != expected.removeprefix("sha256:").lower():
            raise FetchError(f"checksum differs: expected {expected}, found {found}", permanent=False)
        return data
