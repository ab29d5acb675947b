"""The sockets of one process: rooms that share a feed, one ear on the channel layer, and a look at everybody's rights.

All methods of `Hub` run in its event loop. There is one hub per loop, which outside tests means one per process.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from channels.layers import InMemoryChannelLayer, get_channel_layer
from django.db import DatabaseError, connection
from django.utils import timezone

from jobs.models import Job
from webapp.live.frames import DeltaSource
from webapp.live.outbox import EVERY_S, Outbox
from webapp.live.rights import Pass, passes_valid

logger = logging.getLogger(__name__)
T = TypeVar("T")
Notice = dict[str, Any]

POLL_S = 2.0  # a feed looks into the database so often even when no notice came: the layer may be down
RECHECK_S = 2.0
RETRY_S = 2.0
RIGHT_LOST = 4403
MOST_NAMES = 10_000

PROCESS = uuid.uuid4().hex
NUM_THREADS = 2
_threads = concurrent.futures.ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="live")
_hubs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Hub] = weakref.WeakKeyDictionary()


class Watcher:
    """One open socket."""

    def __init__(self, held: Pass, outbox: Outbox, close: Callable[[int], Awaitable[None]]) -> None:
        self.held, self.outbox, self.close = held, outbox, close


class Room:
    """Those who watch one job or one team. A room with a `source` has a feed."""

    def __init__(self, group: str, source: DeltaSource | None) -> None:
        self.group, self.source = group, source
        self.watchers: set[Watcher] = set()
        self.dirty = asyncio.Event()
        self.lock = asyncio.Lock()
        self.task: asyncio.Task[None] | None = None

    async def feed(self) -> None:
        """One query and one frame for all, at most four times a second."""
        assert self.source is not None
        while True:
            try:
                await asyncio.wait_for(self.dirty.wait(), POLL_S)
            except TimeoutError:
                pass
            self.dirty.clear()
            try:
                async with self.lock:
                    frame = await in_thread(self.source.next)
            except Exception:  # the database may be away; watchers stay and the next look tries again
                logger.exception("the live feed could not look at its job")
                await asyncio.sleep(POLL_S)
                continue
            if frame is not None:
                for watcher in self.watchers:
                    watcher.outbox.put_delta(frame)
            await asyncio.sleep(EVERY_S)


class Hub:
    def __init__(self) -> None:
        self.rooms: dict[str, Room] = {}
        self.tasks: list[asyncio.Task[None]] = []
        self.channel: str | None = None
        self.telling: set[asyncio.Future[None]] = set()
        self.job_names: dict[int, str] = {}

    async def join(self, group: str, watcher: Watcher, source: Callable[[], DeltaSource] | None = None) -> Room:
        """Enter a room; the first one opens it."""
        room = self.rooms.get(group)
        if room is None:
            room = self.rooms[group] = Room(group, source() if source else None)
            if self.channel is not None:
                await self._listen(group)
        room.watchers.add(watcher)
        if room.source is not None:
            async with room.lock:
                if room.task is None:
                    await in_thread(room.source.begin)
                    room.task = asyncio.create_task(room.feed())
        if not self.tasks:
            self.tasks = [asyncio.create_task(self._recheck()), asyncio.create_task(self._ear())]
        return room

    async def leave(self, room: Room, watcher: Watcher) -> None:
        """Leave; the last one closes the room, and the last room stops the hub."""
        room.watchers.discard(watcher)
        if room.watchers or self.rooms.get(room.group) is not room:
            return
        del self.rooms[room.group]
        if room.task is not None:
            room.task.cancel()
        if self.rooms:
            await self._unlisten(room.group)
        else:
            for task in self.tasks:
                task.cancel()
            self.tasks, self.channel = [], None
            rest()

    def ring(self, group: str, notice: Notice) -> None:
        """A notice came, from this process or another."""
        room = self.rooms.get(group)
        if room is None:
            return
        if notice["kind"] == "reported":
            room.dirty.set()
            return
        telling = asyncio.ensure_future(self._tell(room, notice))
        self.telling.add(telling)  # the loop keeps no task alive by itself
        telling.add_done_callback(self.telling.discard)

    async def _tell(self, room: Room, notice: Notice) -> None:
        """Pass on what changed, with the public name of its job."""
        change = {k: notice.get(k) for k in ("kind", "subject_type", "subject", "event")}
        change["job"] = await self._job_name(notice.get("job_id"))
        for watcher in room.watchers:
            watcher.outbox.put_change(change)

    async def _job_name(self, job_id: int | None) -> str | None:
        if job_id is None or job_id in self.job_names:
            return self.job_names.get(job_id or 0)
        try:
            found = await in_thread(lambda: Job.objects.filter(pk=job_id).values_list("uuid", flat=True).first())
        except DatabaseError as error:
            logger.warning("the name of a job could not be looked up: %s", error)
            return None
        if len(self.job_names) >= MOST_NAMES:
            self.job_names.clear()
        self.job_names[job_id] = str(found)
        return self.job_names[job_id]

    async def _recheck(self) -> None:
        """Close the sockets of those who may no longer watch."""
        while True:
            await asyncio.sleep(RECHECK_S)
            watchers = [w for room in self.rooms.values() for w in room.watchers]
            try:
                valid = await in_thread(lambda: passes_valid({w.held for w in watchers}, timezone.now()))  # noqa: B023
            except Exception:  # a database that is away for a moment is no reason to throw everybody out
                logger.exception("the rights of live sockets could not be looked up")
                continue
            for watcher in watchers:
                if watcher.held not in valid:
                    await watcher.close(RIGHT_LOST)

    async def _ear(self) -> None:
        """Hear the notices of other processes; after a failure, try again for as long as somebody watches."""
        layer = get_channel_layer()
        if layer is None or isinstance(layer, InMemoryChannelLayer):
            return  # nothing comes from outside
        while True:
            try:
                self.channel = await layer.new_channel()
                for group in list(self.rooms):
                    await layer.group_add(group, self.channel)
                while True:
                    message = await layer.receive(self.channel)
                    if message["origin"] != f"{PROCESS}:{os.getpid()}":  # our own came by the short way
                        self.ring(message["group"], message)
            except Exception as error:  # noqa: BLE001  a layer may raise anything; feeds poll meanwhile
                self.channel = None
                logger.warning("live notices of other processes are not heard: %s", error or type(error).__name__)
                await asyncio.sleep(RETRY_S)

    async def _listen(self, group: str) -> None:
        try:
            await get_channel_layer().group_add(group, self.channel)
        except Exception as error:  # noqa: BLE001  as above
            logger.warning("live notices of %s are not heard: %s", group, error)

    async def _unlisten(self, group: str) -> None:
        if self.channel is None:
            return
        try:
            await get_channel_layer().group_discard(group, self.channel)
        except Exception as error:  # noqa: BLE001  as above
            logger.warning("live notices of %s are still heard: %s", group, error)


def hub() -> Hub:
    """The hub of the running loop."""
    loop = asyncio.get_running_loop()
    found = _hubs.get(loop)
    if found is None:
        found = _hubs[loop] = Hub()
    return found


def ring_local(group: str, notice: Notice) -> None:
    """From any thread: tell the hubs of this process."""
    for loop, found in list(_hubs.items()):
        if loop.is_running():
            loop.call_soon_threadsafe(found.ring, group, notice)


async def in_thread(work: Callable[[], T]) -> T:
    """Run a query in one of the hub's own threads, so that it waits neither for requests nor they for it.

    The threads keep their database connections while somebody watches.
    """

    def inner() -> T:
        try:
            return work()
        except DatabaseError:
            connection.close()  # it may be broken; the next query opens another
            raise

    return await asyncio.get_running_loop().run_in_executor(_threads, inner)


def rest() -> None:
    """Nobody watches: let the threads close their connections, each its own."""
    both = threading.Barrier(NUM_THREADS)

    def close() -> None:
        try:
            both.wait(1.0)
        except threading.BrokenBarrierError:
            pass  # the other thread is at work for somebody new
        connection.close()

    for _ in range(NUM_THREADS):
        _threads.submit(close)
