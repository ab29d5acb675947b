"""From the domain's signals to the sockets: best effort, never in the way of the work that caused them.

The thread that did the work only puts a notice on a queue. One thread per process, with an event loop of its own that lives as
long as the process, carries notices to the sockets of this process and through the channel layer to those of others. If the
layer is down, notices are dropped: browsers see it by sequence numbers, and feeds look into the database anyway.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import logging
import os
import threading
import time
from typing import Any

from channels.layers import InMemoryChannelLayer, get_channel_layer

from jobs.signals import changed, reported
from webapp.live.groups import job_group, team_group
from webapp.live.hub import PROCESS, Notice, ring_local

logger = logging.getLogger(__name__)

MOST_WAITING = 1_000  # notices; beyond it the oldest are dropped
REPORTED_EVERY_S = 0.25  # telemetry of one job is announced at most so often
SEND_TIMEOUT_S = 2.0
QUIET_AFTER_ERROR_S = 5.0  # a layer that failed is left alone for so long


class Publisher:
    """The carrying thread of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.waiting: collections.deque[tuple[str, Notice]] = collections.deque(maxlen=MOST_WAITING)
        self.announced: dict[str, float] = {}  # group -> when it may be announced again
        self.late: set[str] = set()  # groups whose announcement was put off
        self.dark_until = 0.0
        self.loop = asyncio.new_event_loop()
        self.awake = asyncio.Event()
        self.is_ending = False
        self.thread = threading.Thread(target=self._run, name="live-notices", daemon=True)
        self.thread.start()
        atexit.register(self.end)

    def put(self, group: str, notice: Notice) -> None:
        """From any thread; returns at once."""
        self.waiting.append((group, notice))
        self.loop.call_soon_threadsafe(self.awake.set)

    def end(self) -> None:
        """Carry what waits and end, or give up after a while: a command's last notice is sent, and a thread that lived on in an
        interpreter that is taken down could abort the process on its way through an extension."""
        if os.getpid() == self.pid:
            self.is_ending = True
            self.loop.call_soon_threadsafe(self.awake.set)
            self.thread.join(2 * SEND_TIMEOUT_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._carry())

    async def _carry(self) -> None:
        while not self.is_ending or self.waiting:
            try:
                await asyncio.wait_for(self.awake.wait(), REPORTED_EVERY_S if self.late else None)
            except TimeoutError:
                pass
            self.awake.clear()
            for group, notice in self._due():
                ring_local(group, notice)
                await self._send(group, notice)

    def _due(self) -> list[tuple[str, Notice]]:
        """What may be said now; telemetry of a job said a moment ago is put off and said once."""
        due: list[tuple[str, Notice]] = []
        while self.waiting:
            group, notice = self.waiting.popleft()
            if notice["kind"] == "reported":
                self.late.add(group)
            else:
                due.append((group, notice))
        now = time.monotonic()
        for group in [g for g in self.late if self.announced.get(g, 0.0) <= now]:
            self.late.discard(group)
            self.announced[group] = now + REPORTED_EVERY_S
            due.append((group, {"kind": "reported"}))
        if len(self.announced) > 10 * MOST_WAITING:
            self.announced.clear()
        return due

    async def _send(self, group: str, notice: Notice) -> None:
        layer = get_channel_layer()
        if layer is None or isinstance(layer, InMemoryChannelLayer) or time.monotonic() < self.dark_until:
            return  # nobody outside this process listens there, or the layer has just failed
        message = {"type": "live.notice", "group": group, "origin": f"{PROCESS}:{self.pid}", **notice}
        try:
            await asyncio.wait_for(layer.group_send(group, message), SEND_TIMEOUT_S)
        except Exception as error:  # noqa: BLE001  a layer may raise anything; a notice is not worth a business failure
            self.dark_until = time.monotonic() + QUIET_AFTER_ERROR_S
            logger.warning("live notices are not carried to other processes: %s", error or type(error).__name__)


_publisher: Publisher | None = None
_lock = threading.Lock()


def publish(group: str, notice: Notice) -> None:
    """Say something to the sockets of a group. Never blocks, never raises."""
    global _publisher
    try:
        with _lock:
            if _publisher is None or _publisher.pid != os.getpid():  # threads do not survive a fork
                _publisher = Publisher()
            publisher = _publisher
        publisher.put(group, notice)
    except Exception as error:  # noqa: BLE001  as above: not even an interpreter that is shutting down may hurt the caller
        logger.warning("live notice was not sent: %s", error)


def _forked() -> None:
    global _lock
    _lock = threading.Lock()  # the parent's may have been held at the fork


os.register_at_fork(after_in_child=_forked)


def on_changed(
    sender: Any,
    *,
    team_id: int,
    job_id: int | None,
    kind: str,
    subject_type: str,
    subject_uuid: str,
    event_id: int,
    **_: Any,
) -> None:
    notice = {"kind": kind, "subject_type": subject_type, "subject": subject_uuid, "job_id": job_id, "event": event_id}
    publish(team_group(team_id), notice)
    if job_id is not None:
        publish(job_group(job_id), notice)


def on_reported(sender: Any, *, job_id: int, **_: Any) -> None:
    publish(job_group(job_id), {"kind": "reported"})


def connect() -> None:
    """Called once when Django is ready."""
    changed.connect(on_changed, dispatch_uid="webapp.live.changed")
    reported.connect(on_reported, dispatch_uid="webapp.live.reported")
