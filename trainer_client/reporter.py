"""Telemetry of one rank: collected by the training thread, sent by a background thread, kept on disk until confirmed.

Nothing here raises into training or blocks it: the training thread only appends to a bounded list under a short lock.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainer_client import transport as http
from trainer_client.coercion import NotANumber, Number, to_number
from trainer_client.delivery import Delivery, Warner
from trainer_client.outbox import Outbox, OutboxFull
from trainer_client.protocol import (
    MAX_LOG_LINES,
    Ack,
    Directive,
    LogLine,
    ProtocolError,
    ShardPoint,
    StepPoint,
    report_body,
)

log = logging.getLogger("counterflow.reporter")

MAX_POINTS_WAITING = 200_000
MAX_POINTS_PER_REPORT = 4_000
HEARTBEAT_S = 4.0
AWAY_INTERVAL_S = 5.0  # fewer and larger files while the server is away
FAULT_PAUSE_S = 30.0


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
        self._waiting = Waiting()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._idle = threading.Condition()
        self._stopping = False
        self._warn = Warner()
        self._delivery: Delivery | None = None
        if transport is not None:
            self._delivery = Delivery(
                outbox, transport, interval_s=interval_s, warn=self._warn, on_directives=on_directives
            )
        self.dropped_points = 0
        self.refused_values = 0
        self.busy: str | None = None  # what training does beside steps, in a word; None: it does not tell
        self._thread = threading.Thread(target=self._run, name=f"counterflow-reporter-{worker}", daemon=True)

    def start(self) -> None:
        """Begin sending; what an earlier life of this worker left behind goes first."""
        self.start_if_needed()

    def start_if_needed(self) -> None:
        """As `start`, for whoever does not know whether it was."""
        if self._thread.ident is None:
            self._thread.start()

    @property
    def superseded(self) -> bool:
        """A newer attempt exists: training is to stop."""
        return self._delivery is not None and self._delivery.superseded.is_set()

    @property
    def confirmed_reports(self) -> int:
        """Reports that the server has taken in this life of the worker."""
        return self._delivery.confirmed_reports if self._delivery is not None else 0

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
                if self._delivery is not None:
                    self._delivery.deliver()
            except Exception:  # telemetry must never end: a fault here may cost a report, not the job
                log.exception("reporter: unexpected fault; going on")
                if self._delivery is not None:
                    self._delivery.rest(FAULT_PAUSE_S)
            with self._idle:
                self._idle.notify_all()
            if self._stopping:
                self._collect()
                return

    def _pause_s(self) -> float:
        """Seconds until the next round: the reporting interval, or sooner when a retry is due."""
        delivery = self._delivery
        if delivery is None or self.superseded:
            return self._interval_s
        if not len(self._outbox):
            return delivery.interval_s
        until_retry_s = max(0.02, delivery.next_try_at - time.monotonic())
        return min(AWAY_INTERVAL_S if delivery.failures >= 3 else delivery.interval_s, until_retry_s)

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
            system = self._system() if self._system else {}
            system |= {} if self.busy is None else {"busy": self.busy}
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
        """Rank 0 asks for directives with every interval, the others only show that they live."""
        delivery = self._delivery
        if delivery is None or self.superseded:
            return False
        pause_s = delivery.interval_s if self._worker == 0 else HEARTBEAT_S
        return time.monotonic() - delivery.last_sent_at >= min(pause_s, HEARTBEAT_S)
