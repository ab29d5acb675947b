"""A real Ray with one node on loopback: its head, started in the foreground, with its files in one folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import httpx

from tests.services import free_port, wait_until

CPUS = 4


class RayHead:
    """`start` returns the address of the job server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._head: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        port = free_port()
        words = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--disable-usage-stats"]
        words += [
            "--node-ip-address=127.0.0.1",
            f"--port={free_port()}",
            f"--dashboard-port={port}",
            f"--num-cpus={CPUS}",
        ]
        words += [f"--temp-dir={self.folder}", "--object-store-memory=100000000"]
        with open(self.folder / "head.log", "ab") as log:
            self._head = subprocess.Popen(words, stdout=log, stderr=log, env=_environment())
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: _answers(address), within_s=90, what="Ray's job server answers", every_s=0.2)
        return address

    def stop(self) -> None:
        """The head takes its own processes with it."""
        if self._head is not None:
            self._head.terminate()
            self._head.wait(30)


def _environment() -> dict[str, str]:
    return os.environ | {"RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "90"}


def _answers(address: str) -> bool:
    try:
        return httpx.get(f"{address}/api/jobs/", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False
