"""What waits to be sent to one browser: the newest delta and a few notices, never a queue that grows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

EVERY_S = 0.25  # at most four frames a second
MOST_CHANGES = 50

encode = msgspec.json.Encoder().encode
Send = Callable[[str], Awaitable[None]]


class Outbox:
    """Slots for one socket. What is not sent in time is replaced; the browser sees that by the sequence numbers."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.num_sent = 0
        self.delta: bytes | None = None
        self.changes: dict[tuple[str, str], dict[str, Any]] = {}
        self.many = False
        self.waiting = asyncio.Event()

    def put_delta(self, frame: bytes) -> None:
        """`frame` is an encoded object; it replaces one that was not sent yet."""
        self.delta = frame
        self.waiting.set()

    def put_change(self, change: dict[str, Any]) -> None:
        key = (change["kind"], change["subject"])
        self.many = self.many or len(self.changes) >= MOST_CHANGES
        if key in self.changes or not self.many:
            self.changes[key] = change
        self.waiting.set()

    async def pump(self) -> None:
        """Send what waits until cancelled."""
        while True:
            await self.waiting.wait()
            self.waiting.clear()
            delta, self.delta = self.delta, None
            if delta is not None:
                await self._number(delta)
            changes, many = list(self.changes.values()), self.many
            self.changes, self.many = {}, False
            if changes:
                await self._number(encode({"type": "changed", "changes": changes, "many": many}))
            await asyncio.sleep(EVERY_S)

    async def say(self, frame: dict[str, Any]) -> None:
        """Send at once, as the hello is."""
        await self._number(encode(frame))

    async def _number(self, frame: bytes) -> None:
        self.num_sent += 1
        await self.send(f'{{"n":{self.num_sent},{frame[1:].decode()}')
