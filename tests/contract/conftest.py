"""The real server on a real port, on the test's own database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from tests.services import free_port, wait_until


class Server:
    """The ASGI application under uvicorn in a thread; can be stopped and started again on the same port."""

    def __init__(self) -> None:
        self.port = free_port()
        self.server: uvicorn.Server | None = None
        self.thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        from webapp.asgi import application

        config = uvicorn.Config(application, host="127.0.0.1", port=self.port, lifespan="off", log_level="warning")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        wait_until(lambda: self.server is not None and self.server.started, within_s=20, what="the server listens")

    def stop(self) -> None:
        if self.server is not None and self.thread is not None:
            self.server.should_exit = self.server.force_exit = True
            self.thread.join(20)


@pytest.fixture
def server(transactional_db, settings, tmp_path: Path) -> Iterator[Server]:
    settings.VAR_DIR = tmp_path / "var"
    running = Server()
    running.start()
    yield running
    running.stop()
