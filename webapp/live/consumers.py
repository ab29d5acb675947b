"""The two sockets: `/ws/jobs/{uuid}/` (deltas of the heatmap, what changed) and `/ws/team/{uuid}/` (what changed).

Origin is checked before (webapp/asgi.py). Who may not watch is closed with 4403, at connect or within seconds of losing the right.
"""

from __future__ import annotations

import asyncio
from typing import Any

from channels.generic.websocket import AsyncWebsocketConsumer

from jobs.models import Job, Team
from webapp.live.frames import DeltaSource
from webapp.live.groups import job_group, team_group
from webapp.live.hub import RIGHT_LOST, Room, Watcher, hub, in_thread
from webapp.live.outbox import Outbox
from webapp.live.rights import rooms_of


class LiveConsumer(AsyncWebsocketConsumer):
    """Joins the room of its address. It needs no channel of its own: the hub listens for all."""

    channel_layer_alias = "none"
    kind = ""
    room: Room | None = None
    pump: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        await self.accept()
        session = self.scope.get("session")
        key = getattr(session, "session_key", None) or ""
        public_id = self.scope["url_route"]["kwargs"]["public_id"]
        found = await in_thread(lambda: rooms_of(self.scope["user"], key, self.kind, public_id))
        if found is None:
            await self.close(RIGHT_LOST)
            return
        held, row = found
        outbox = Outbox(self._send_text)
        self.watcher = Watcher(held, outbox, self._end)
        self.room = await self._join(row)
        await outbox.say(await self._hello())
        self.pump = asyncio.create_task(outbox.pump())

    async def disconnect(self, code: int) -> None:
        await self._leave()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Browsers have nothing to say here."""

    async def _join(self, row: Job | Team) -> Room:
        raise AssertionError("each kind of socket joins its own room")

    async def _hello(self) -> dict[str, Any]:
        return {"type": "hello"}

    async def _send_text(self, text: str) -> None:
        await self.send(text_data=text)

    async def _end(self, code: int) -> None:
        await self._leave()
        await self.close(code)

    async def _leave(self) -> None:
        if self.pump is not None:
            self.pump.cancel()
            self.pump = None
        room, self.room = self.room, None
        if room is not None:
            await hub().leave(room, self.watcher)


class JobConsumer(LiveConsumer):
    kind = "job"

    async def _join(self, row: Any) -> Room:
        return await hub().join(job_group(row.pk), self.watcher, lambda: DeltaSource(row.pk))

    async def _hello(self) -> dict[str, Any]:
        source = self.room.source if self.room else None
        return {"type": "hello", "seq": source.seq if source else 0, "width": source.width if source else 1}


class TeamConsumer(LiveConsumer):
    kind = "team"

    async def _join(self, row: Any) -> Room:
        return await hub().join(team_group(row.pk), self.watcher)
