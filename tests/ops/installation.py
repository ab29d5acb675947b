"""Starts an installation in a folder and on a port of its own, and looks at it from outside."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import psutil

from tests.services import free_port, wait_until
from webapp.supervisor.strays import marked_processes

REPO = Path(__file__).resolve().parents[2]
FROM_OUTSIDE = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "COUNTERFLOW_BASE_URL")


class Installation:
    """`module` is what runs: the product's supervisor or the tiny one."""

    def __init__(self, folder: Path, module: str) -> None:
        self.folder = folder
        self.module = module
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None

    def env(self, **more: str) -> dict[str, str]:
        env = {name: value for name, value in os.environ.items() if name not in FROM_OUTSIDE}
        own = {
            "COUNTERFLOW_VAR_DIR": str(self.folder),
            "COUNTERFLOW_PORT": str(self.port),
            "COUNTERFLOW_HOST": "127.0.0.1",
        }
        return {**env, **own, **more}

    def command(self, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Run the supervisor's command to its end."""
        argv = [sys.executable, "-m", self.module, "--no-demo", *words]
        return subprocess.run(argv, cwd=REPO, env=self.env(**more), capture_output=True, text=True, timeout=60)

    def start(self, *, within_s: float = 60) -> None:
        argv = [sys.executable, "-m", self.module, "--no-demo"]
        with (self.folder / "supervisor.out").open("a") as output:
            self.process = subprocess.Popen(argv, cwd=REPO, env=self.env(), stdout=output, stderr=output, text=True)
        wait_until(self.is_up, within_s=within_s, what=f"the web server answers; {self.output()}")

    def output(self) -> str:
        return (self.folder / "supervisor.out").read_text()

    def is_up(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.output()
        return self.get("/health/live") is not None

    def get(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            body = error.read()
            return json.loads(body) if body.startswith(b"{") else None
        except (OSError, ValueError):
            return None

    def processes(self, words: str = "") -> list[psutil.Process]:
        """Living processes of this installation beside the supervisor, with `words` in their command line."""
        found = []
        for process in marked_processes(str(self.folder)):
            try:
                if words in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, *, within_s: float = 30) -> int:
        assert self.process is not None
        return self.process.wait(timeout=within_s)

    def destroy(self) -> None:
        """Leave nothing behind, whatever a test did."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in self.processes():
            process.kill()
