"""Workers that need not import anything: forked from a process that already has (`warm_process`).

Importing torch and transformers takes seconds, which a job would pay anew with every resize. The process in FOLDER has imported
what `launch_finetune` needs, has trained nothing and started no thread, and forks itself for each worker that a launcher asks for.
There is one for each FOLDER. It ends when it has had no worker for a quarter of an hour, when FOLDER is gone, or on SIGTERM;
after its workers.

Every launch works without it: `ask` gives None where there is no such process, where it has imported other files than those that
are there now, or under variables that what it imported may have looked at.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_client.backends import processes

ANSWER_S = 5.0
SOCKET = "ask"
MODULE = "trainer_client.launch_finetune"
READ_AT_IMPORT = (
    "PYTHON",
    "LD_",
    "HF_",
    "HUGGINGFACE",
    "TRANSFORMERS",
    "TORCH",
    "PYTORCH",
    "CUDA",
    "MKL_",
    "KMP_",
    "OMP_",
    "GOMP_",
    "ACCELERATE_",
)
SET_LATER = {
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "PYTHONUNBUFFERED",
    "PYTHONPATH",
}  # by a forked worker, or of no effect on it
LENGTH = struct.Struct("!I")


class WarmRank:
    """A forked worker, as far as a launcher uses `subprocess.Popen`: `pid`, `stdout`, `poll`, `returncode`, `send_signal`."""

    def __init__(self, link: socket.socket, pid: int, stdout: Any) -> None:
        self._link, self.pid, self.stdout = link, pid, stdout
        self.returncode: int | None = None
        self._handle = -1
        with contextlib.suppress(ProcessLookupError):
            self._handle = os.pidfd_open(pid)
        link.setblocking(False)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            with contextlib.suppress(BlockingIOError):
                self.returncode = self._said()
        return self.returncode

    def send_signal(self, signum: int) -> None:
        if self.returncode is None and self._handle >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, signum)

    def _said(self) -> int | None:
        """What the process it was forked from says. If that is gone, the worker goes with it, and how is not known."""
        try:
            content = self._link.recv(64)
        except ConnectionError:
            content = b""
        if content:
            return int(content)
        is_gone = self._handle < 0 or select.select([self._handle], [], [], 0)[0]
        return -signal.SIGTERM if is_gone else None


def ask(folder: Path, command: Sequence[str], env: Mapping[str, str]) -> WarmRank | None:
    """Fork a worker that runs `command` under `env`; None where that cannot be had."""
    if not can_be_warm(command) or not (folder / SOCKET).exists():
        return None
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(ANSWER_S)
    reader, writer = os.pipe()
    try:
        with short_name(folder) as short:
            link.connect(f"{short}/{SOCKET}")
        hello = received(link)
        if hello != greeting(env):
            raise OSError("it has imported something else")
        send(link, {"argv": list(command[3:]), "env": dict(env), "cwd": os.getcwd()}, [writer])
        return WarmRank(link, int(received(link)["pid"]), os.fdopen(reader, "rb", buffering=0))
    except (OSError, ValueError, KeyError):
        link.close()
        os.close(reader)
        return None
    finally:
        os.close(writer)


def can_be_warm(command: Sequence[str]) -> bool:
    """Whether it is our launcher, on a system that can do this, without GPUs (a fork must not have looked at one)."""
    ours = list(command[:3]) == [sys.executable, "-m", MODULE]
    return ours and sys.platform.startswith("linux") and not glob.glob("/dev/nvidia[0-9]*")


def warm_up(folder: Path, env: Mapping[str, str] = os.environ) -> None:
    """Start the process of `folder`, unless there is one, for workers under `env`. Returns at once."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "log", "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "trainer_client.backends.warm_process", str(folder)],
            env={**env, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def cool_down(folder: Path) -> None:
    """End the process of `folder`, if there is one, as soon as no worker is left."""
    with contextlib.suppress(OSError, ValueError):
        processes.send(json.loads((folder / "process.json").read_text()), signal.SIGTERM)


def greeting(env: Mapping[str, str]) -> dict[str, Any]:
    """What a warm process must have in common with a worker that it is to become."""
    package = Path(__file__).parents[1]
    files = [*package.glob("*.py"), *package.glob("*/*.py")]
    newest = max(path.stat().st_mtime_ns for path in files)
    seen = {key: value for key, value in sorted(env.items()) if key.startswith(READ_AT_IMPORT) and key not in SET_LATER}
    return {"package": str(package), "files": len(files), "newest": newest, "env": seen}


@contextlib.contextmanager
def short_name(folder: Path) -> Iterator[str]:
    """A short name for `folder`: the address of a socket has room for a hundred bytes."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def send(link: socket.socket, content: dict[str, Any], handles: Sequence[int] = ()) -> None:
    """A message, and open files with it."""
    body = json.dumps(content).encode()
    socket.send_fds(link, [LENGTH.pack(len(body))], list(handles)) if handles else link.sendall(LENGTH.pack(len(body)))
    link.sendall(body)


def received(link: socket.socket) -> dict[str, Any]:
    """The next message. `ConnectionError` where there will be none."""
    return received_with_handles(link)[0]


def received_with_handles(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message with the open files that came with it."""
    head, handles, _, _ = socket.recv_fds(link, LENGTH.size, 1)
    while 0 < len(head) < LENGTH.size:
        head += _some(link, LENGTH.size - len(head))
    if not head:
        raise ConnectionError("it has hung up")
    body = b""
    (wanted,) = LENGTH.unpack(head)
    while len(body) < wanted:
        body += _some(link, wanted - len(body))
    return json.loads(body), handles


def _some(link: socket.socket, most: int) -> bytes:
    if part := link.recv(most):
        return part
    raise ConnectionError("it has hung up")
