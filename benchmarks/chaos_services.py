"""A PostgreSQL and a Redis of its own for `chaos.py`, so that both can be killed and come back."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ACCOUNT = "postgres"  # PostgreSQL does not run as root


class Services:
    """Context manager. `database_url` and `redis_url` say where they listen; both keep on disk what they have confirmed."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="counterflow-chaos-"))
        self.ports = {"postgres": _free_port(), "redis": _free_port()}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def database_url(self) -> str:
        return f"postgres://{_account()}@127.0.0.1:{self.ports['postgres']}/chaos"

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.ports['redis']}/0"

    def __enter__(self) -> Services:
        self.folder.chmod(0o755)
        data = self.folder / "postgres"
        data.mkdir()
        shutil.chown(data, _account())
        _as_account([_program("initdb"), "-D", str(data), "-A", "trust", "-U", _account(), "-E", "UTF8"])
        self.start("postgres")
        self.start("redis")
        _as_account([_program("createdb"), "-h", "127.0.0.1", "-p", str(self.ports["postgres"]), "chaos"])
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, name: str) -> None:
        """Returns when it answers. A postmaster that was killed leaves children that must be gone first: it is tried again."""
        for _ in range(60):
            self.running[name] = process = self._popen(name)
            if (
                _within(15, lambda: self.running[name].poll() is not None or self._answers(name))
                and process.poll() is None
            ):
                return
            process.kill()
            process.wait()
            (self.folder / "postgres" / "postmaster.pid").unlink(missing_ok=True)
            time.sleep(0.5)
        raise SystemExit(f"{name} does not start; see {self.folder / name}.log")

    def strike(self, name: str, *, kill: bool) -> None:
        """Kill it, or have it shut down as an administrator does, and start it again."""
        process = self.running[name]
        process.send_signal(signal.SIGKILL if kill else signal.SIGINT)
        process.wait(60)
        self.start(name)

    def _popen(self, name: str) -> subprocess.Popen[bytes]:
        port = str(self.ports[name])
        if name == "redis":
            argv = [
                "redis-server",
                "--bind",
                "127.0.0.1",
                "--port",
                port,
                "--dir",
                str(self.folder),
                "--appendonly",
                "yes",
                "--save",
                "",
            ]
        else:
            places = ["-D", str(self.folder / "postgres"), "-k", "", "-c", "max_connections=200"]
            argv = [_program("postgres"), *places, "-c", f"port={port}", "-c", "listen_addresses=127.0.0.1"]
        user = _account() if name == "postgres" and os.geteuid() == 0 else None
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(argv, stdout=log, stderr=log, user=user, cwd=self.folder, start_new_session=True)

    def _answers(self, name: str) -> bool:
        port = str(self.ports[name])
        argv = (
            ["redis-cli", "-p", port, "ping"]
            if name == "redis"
            else [_program("pg_isready"), "-h", "127.0.0.1", "-p", port]
        )
        done = subprocess.run(argv, capture_output=True, check=False)
        return done.returncode == 0 and (name != "redis" or b"PONG" in done.stdout)


def _account() -> str:
    return ACCOUNT if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name


def _as_account(argv: list[str]) -> None:
    user = _account() if os.geteuid() == 0 else None
    done = subprocess.run(argv, user=user, cwd="/", capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(argv)}:\n{done.stderr.decode(errors='replace')}")


def _program(name: str) -> str:
    """PostgreSQL's own programs lie outside of PATH on Debian."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        raise SystemExit(f"{name} is not installed (on Debian: apt install postgresql).")
    return path


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _within(seconds: float, holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True
