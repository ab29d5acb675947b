"""A whole installation of its own for the headless demo: own folder, own port, own services, gone afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import httpx

OWN = (
    "DATABASE_URL",
    "REDIS_URL",
    "COUNTERFLOW_BASE_URL",
    "COUNTERFLOW_ALLOWED_HOSTS",
    "COUNTERFLOW_CSRF_TRUSTED_ORIGINS",
)


class StackError(RuntimeError):
    """The installation could not be brought up or failed on the way; the message says where to look."""


class Stack:
    """`with Stack(folder) as stack:` runs every process of an installation; `stack.manage(…)` runs a command in it."""

    def __init__(self, folder: Path, *, root: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.root = root
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        kept = {k: v for k, v in os.environ.items() if k not in OWN}
        mine = {"COUNTERFLOW_VAR_DIR": str(folder), "COUNTERFLOW_HOST": "127.0.0.1", "COUNTERFLOW_PORT": str(self.port)}
        self.env = {**kept, **mine, **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Stack:
        if self.folder.exists():  # of an earlier run, which may have been killed
            words = [sys.executable, "-m", "webapp.supervisor", "stop"]
            subprocess.run(words, cwd=self.root, env=self.env, capture_output=True, check=False)
            shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        log = (self.folder / "supervisor.log").open("wb")
        words = [sys.executable, "-m", "webapp.supervisor", "--no-demo"]
        self.process = subprocess.Popen(words, cwd=self.root, env=self.env, stdout=log, stderr=subprocess.STDOUT)
        try:
            self._wait(within_s=180)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """SIGTERM, and kill after a minute: nothing may stay."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def manage(self, *words: str) -> str:
        """Run `manage.py WORDS` in the installation; its output. Raises `StackError` with the last lines if it fails."""
        done = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=self.root,
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StackError(f"manage.py {words[0]} failed:\n{(done.stdout + done.stderr)[-2000:]}")
        return done.stdout.strip()

    def alive(self) -> None:
        """Raise `StackError` if the supervisor has gone."""
        if self.process is None or self.process.poll() is not None:
            raise StackError(f"The installation stopped by itself; see {self.folder}/supervisor.log.")

    def _wait(self, *, within_s: float) -> None:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            self.alive()
            try:
                if httpx.get(f"{self.url}/health/ready", timeout=5).status_code == 200:
                    return
            except httpx.HTTPError:
                pass  # not up yet
            time.sleep(0.5)
        raise StackError(f"Not ready after {within_s:g} s; see {self.folder}/supervisor.log and {self.folder}/logs.")
