"""Telemetry of one rank: collected by the training thread, sent by a background thread, kept on disk until confirmed.

Nothing here raises into training or blocks it: the training thread only appends to a bounded list under a short lock.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer_client import transport as http
from trainer_client.coercion import NotANumber, Number, to_number
from trainer_client.outbox import Item, Outbox, OutboxFull
from trainer_client.protocol import (
    MAX_LOG_LINES,
    Ack,
    Directive,
    LogLine,
    ProtocolError,
    ShardPoint,
    StepPoint,
    report_body,
    split_report,
)

log = logging.getLogger("counterflow.reporter")

MAX_POINTS_WAITING = 200_000
MAX_POINTS_PER_REPORT = 4_000
HEARTBEAT_S = 4.0
AWAY_INTERVAL_S = 5.0  # fewer and larger files while the server is away
FIRST_BACKOFF_S, LAST_BACKOFF_S = 0.5, 30.0
AUTH_RETRY_S = 15.0
WARN_EVERY_S = 60.0


@dataclass
class Waiting:
    """What the training thread has handed over and the background thread has not yet taken."""

    steps: list[StepPoint] = field(default_factory=list)
    shards: list[ShardPoint] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    logs: list[LogLine] = field(default_factory=list)
    posts: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def num_points(self) -> int:
        return len(self.steps) + len(self.shards)

    def anything(self) -> bool:
        return bool(self.steps or self.shards or self.acks or self.logs or self.posts)


class Reporter:
    """One rank's channel to the server. `transport=None` keeps everything in the outbox (offline)."""

    def __init__(
        self,
        outbox: Outbox,
        transport: http.Transport | None,
        *,
        worker: int,
        interval_s: float = 1.0,
        system: Callable[[], dict[str, Any]] | None = None,
        on_directives: Callable[[list[Directive]], None] | None = None,
    ) -> None:
        self._outbox = outbox
        self._transport = transport
        self._worker = worker
        self._interval_s = interval_s
        self._system = system
        self._on_directives = on_directives
        self._waiting = Waiting()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._idle = threading.Condition()
        self._stopping = False
        self._dead = False
        self._failures = 0
        self._next_try_at = 0.0
        self._last_sent_at = time.monotonic()
        self._last_warning: dict[str, float] = {}
        self.superseded = threading.Event()
        self.dropped_points = 0
        self.refused_values = 0
        self.confirmed_reports = 0
        self._thread = threading.Thread(target=self._run, name=f"counterflow-reporter-{worker}", daemon=True)

    def start(self) -> None:
        """Begin sending; what an earlier life of this worker left behind goes first."""
        self.start_if_needed()

    def start_if_needed(self) -> None:
        """As `start`, for whoever does not know whether it was."""
        if self._thread.ident is None:
            self._thread.start()

    # -- called by the training thread ------------------------------------------------------------------------------

    def add_step(self, step: int, shards: Mapping[str, tuple[Any, int, int]] | None = None, **columns: Any) -> None:
        """One optimizer step of this rank. `columns`: the fields of `StepPoint`; `shards`: id -> (loss_sum, tokens, samples).

        A value that is no number is dropped alone, counted and named in the log.
        """
        point = StepPoint(step, **{name: self._number(name, value) for name, value in columns.items()})
        parts = [
            ShardPoint(step, shard, self._number(f"loss of {shard}", loss), int(tokens), int(samples))
            for shard, (loss, tokens, samples) in (shards or {}).items()
        ]
        with self._lock:
            if self._waiting.num_points() + 1 + len(parts) > MAX_POINTS_WAITING:
                self.dropped_points += 1 + len(parts)
                return
            self._waiting.steps.append(point)
            self._waiting.shards.extend(parts)

    def acknowledge(self, ack: Ack) -> None:
        """Tell the server what became of a directive; goes out at once."""
        with self._lock:
            self._waiting.acks.append(ack)
        self._wake.set()

    def say(self, text: str, level: str = "info") -> None:
        """A line for the job's log page; the oldest lines give way when too many wait."""
        with self._lock:
            self._waiting.logs.append(LogLine(text, level))
            del self._waiting.logs[:-MAX_LOG_LINES]

    def post(self, kind: str, body: dict[str, Any]) -> None:
        """Queue another request of the attempt (`start`, `snapshots`, `finish`), in order with the reports."""
        with self._lock:
            self._waiting.posts.append((kind, body))
        self._wake.set()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything handed over so far is confirmed; False when the time ran out (it stays on disk)."""
        deadline = time.monotonic() + timeout_s
        self._wake.set()
        with self._idle:
            while not self._drained():
                left = deadline - time.monotonic()
                if left <= 0 or not self._thread.is_alive() or self._transport is None:
                    return self._drained()
                self._idle.wait(min(left, 0.1))
        return True

    def close(self, timeout_s: float = 10.0) -> bool:
        """Flush and end the thread. Whatever is not confirmed by then waits in the outbox for a replay."""
        done = self.flush(timeout_s)
        self._stopping = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=http.TIMEOUT.read or 10.0)
        if self._transport is not None and not self._thread.is_alive():
            self._transport.close()
        return done

    def _drained(self) -> bool:
        with self._lock:
            waiting = self._waiting.anything()
        return not waiting and len(self._outbox) == 0

    def _number(self, name: str, value: Any) -> Number:
        try:
            return to_number(value)
        except NotANumber as error:
            self.refused_values += 1
            self._warn(f"value:{name}", f"{name} is not reported: {error}")
            return None

    # -- background thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            self._wake.wait(self._pause_s())
            self._wake.clear()
            try:
                self._collect()
                self._deliver()
            except Exception:  # telemetry must never end: a fault here may cost a report, not the job
                log.exception("reporter: unexpected fault; going on")
                self._next_try_at = time.monotonic() + LAST_BACKOFF_S
            with self._idle:
                self._idle.notify_all()
            if self._stopping:
                self._collect()
                return

    def _pause_s(self) -> float:
        """Seconds until the next round: the reporting interval, or sooner when a retry is due."""
        if not len(self._outbox) or self._transport is None or self._dead:
            return self._interval_s
        until_retry_s = max(0.02, self._next_try_at - time.monotonic())
        return min(AWAY_INTERVAL_S if self._failures >= 3 else self._interval_s, until_retry_s)

    def _collect(self) -> None:
        """Move what waits in memory to the outbox, as as many requests as it takes."""
        with self._lock:
            taken, self._waiting = self._waiting, Waiting()
        early = [post for post in taken.posts if post[0] != "finish"]
        late = [post for post in taken.posts if post[0] == "finish"]
        for kind, body in early:
            self._keep(kind, body)
        self._keep_points(taken)
        for kind, body in late:
            self._keep(kind, body)
        if not len(self._outbox) and self._heartbeat_due() and not self._stopping:
            self._keep_report()

    def _keep_points(self, taken: Waiting) -> None:
        """Cut by steps and shards in the order they came; acknowledgements and log lines ride with the first."""
        steps, shards = taken.steps, taken.shards
        acks, logs = taken.acks, taken.logs
        while steps or shards or acks or logs:
            some_shards, shards = shards[:MAX_POINTS_PER_REPORT], shards[MAX_POINTS_PER_REPORT:]
            some_steps, steps = steps[:MAX_POINTS_PER_REPORT], steps[MAX_POINTS_PER_REPORT:]
            self._keep_report(steps=some_steps, shards=some_shards, acks=acks, logs=logs)
            acks, logs = [], []

    def _keep_report(self, **sections: Any) -> None:
        try:
            seq = self._outbox.take_seq()
            system = self._system() if self._system else None
            self._outbox.append("reports", report_body(worker=self._worker, seq=seq, system=system, **sections))
        except (OutboxFull, ProtocolError) as error:
            points = len(sections.get("steps", ())) + len(sections.get("shards", ()))
            self.dropped_points += points
            self._warn("lost", f"{points} points are lost: {error} ({self.dropped_points} in all)")

    def _keep(self, kind: str, body: dict[str, Any]) -> None:
        try:
            self._outbox.append(kind, body)
        except (OutboxFull, ProtocolError) as error:
            self._warn("lost", f"a {kind} message is lost: {error}")

    def _heartbeat_due(self) -> bool:
        if self._transport is None or self._dead:
            return False
        pause = self._interval_s if self._worker == 0 else HEARTBEAT_S
        return time.monotonic() - self._last_sent_at >= min(pause, HEARTBEAT_S)

    def _deliver(self) -> None:
        """Send waiting items in order until one does not get through."""
        while self._transport is not None and not self._dead:
            item = self._outbox.first()
            if item is None or time.monotonic() < self._next_try_at:
                return
            if not self._send(item):
                return

    def _send(self, item: Item) -> bool:
        """Send one item; True when the next one may be tried at once."""
        assert self._transport is not None
        reply = self._transport.post(item.kind, item.payload())
        self._last_sent_at = time.monotonic()
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
        self._failures = 0
        self.confirmed_reports += item.kind == "reports"
        with contextlib.suppress(TypeError, ValueError):
            self._interval_s = min(5.0, max(0.05, float(body.get("report_interval_s") or self._interval_s)))
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
        self._dead = True
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
        self._failures += 1
        wait_s = min(LAST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.0)
        if reply.kind == http.AUTH:
            wait_s = max(wait_s, AUTH_RETRY_S)
        if reply.retry_after_s is not None:
            wait_s = reply.retry_after_s
        self._next_try_at = time.monotonic() + wait_s
        self._warn(reply.kind, f"server: {reply.detail}; {len(self._outbox)} messages wait, training goes on")

    def _warn(self, key: str, text: str) -> None:
        """Log at most once a minute for each kind of trouble."""
        now = time.monotonic()
        if now - self._last_warning.get(key, -WARN_EVERY_S) >= WARN_EVERY_S:
            self._last_warning[key] = now
            log.warning("%s", text)
