"""A real Ray on loopback: its head, started in the foreground, with its files in one folder, and nodes that join it.

`COUNTERFLOW_RAY_PYTHON` names an interpreter that has Ray (`pip install -r requirements-ray.txt` in an environment of its own);
without, the one that runs the tests is looked at.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx

from tests.services import free_port, wait_until

CPUS = 4
PYTHON = os.environ.get("COUNTERFLOW_RAY_PYTHON", "") or sys.executable
RAY = Path(PYTHON).parent / "ray"


class RayHead:
    """`start` returns the address of the job server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ""
        self._port = free_port()
        self._head: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        port = free_port()
        self._head = self._start(
            "--head",
            "--disable-usage-stats",
            f"--port={self._port}",
            f"--dashboard-port={port}",
            f"--num-cpus={CPUS}",
            f"--temp-dir={self.folder}",
        )
        self.address = f"http://127.0.0.1:{port}"
        wait_until(lambda: _takes_jobs(self.address), within_s=110, what="Ray's job server takes jobs", every_s=0.5)
        return self.address

    def join(self, num_cpus: int) -> RayNode:
        """Another node, once Ray counts on it."""
        before = self._num_nodes()
        node = RayNode(self._start(f"--address=127.0.0.1:{self._port}", f"--num-cpus={num_cpus}"))
        wait_until(lambda: self._num_nodes() > before, within_s=90, what="the node has joined", every_s=0.5)
        return node

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        given = [str(RAY), "start", "--block", "--node-ip-address=127.0.0.1", "--object-store-memory=100000000", *words]
        with open(self.folder / "ray.log", "ab") as log:
            return subprocess.Popen(given, stdout=log, stderr=log, env=_environment(), start_new_session=True)

    def _num_nodes(self) -> int:
        found = httpx.get(f"{self.address}/nodes?view=summary", timeout=10).json()["data"]["summary"]
        return sum(node["raylet"]["state"] == "ALIVE" for node in found)

    def stop(self) -> None:
        """The head takes its own processes with it."""
        if self._head is not None:
            self._head.terminate()
            self._head.wait(30)


class RayNode:
    """A node that has joined, in a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def kill(self) -> None:
        """As if it lost its power: everything of Ray's own there at once. Harmless to repeat."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)


def has_ray() -> bool:
    return RAY.exists()


def _environment() -> dict[str, str]:
    return os.environ | {"RAY_DASHBOARD_SUBPROCESS_MODULE_WAIT_READY_TIMEOUT": "90"}


def _takes_jobs(address: str) -> bool:
    """It answers some seconds before it has an agent to hand jobs to."""
    try:
        return httpx.post(f"{address}/api/jobs/", json={"entrypoint": "true"}, timeout=20).status_code == 200
    except httpx.HTTPError:
        return False
