"""A browser's side of a socket, against the real ASGI application."""

from __future__ import annotations

import json
from typing import Any

from asgiref.sync import sync_to_async
from asgiref.testing import ApplicationCommunicator
from django.test import Client

from webapp.asgi import application


async def signed_in(user: Any) -> Client:
    """A client whose session lies in the database."""
    client = Client()
    await sync_to_async(client.force_login)(user)
    return client


class Socket:
    """One connection with the client's cookies. `origin` empty sends none."""

    def __init__(self, client: Client, path: str, origin: str = "http://testserver") -> None:
        cookies = "; ".join(f"{name}={morsel.value}" for name, morsel in client.cookies.items())
        headers = [(b"host", b"testserver"), (b"cookie", cookies.encode())]
        if origin:
            headers.append((b"origin", origin.encode()))
        scope = {"type": "websocket", "path": path, "query_string": b"", "headers": headers, "subprotocols": []}
        self.wire = ApplicationCommunicator(application, scope)

    async def open(self) -> bool:
        """Whether the handshake is accepted."""
        await self.wire.send_input({"type": "websocket.connect"})
        return bool((await self.wire.receive_output(8))["type"] == "websocket.accept")

    async def next(self, within_s: float = 8.0) -> dict[str, Any]:
        """The next frame."""
        message = await self.wire.receive_output(within_s)
        assert message["type"] == "websocket.send", message
        return dict(json.loads(message["text"]))

    async def frame(self, kind: str, within_s: float = 8.0) -> dict[str, Any]:
        """The next frame of a kind; others on the way are passed over."""
        while (found := await self.next(within_s))["type"] != kind:
            pass
        return found

    async def closing_code(self, within_s: float = 8.0) -> int:
        """Read on until the server closes."""
        while (message := await self.wire.receive_output(within_s))["type"] != "websocket.close":
            pass
        return int(message["code"])

    async def leave(self) -> None:
        await self.wire.send_input({"type": "websocket.disconnect", "code": 1000})
        await self.wire.wait(8)
