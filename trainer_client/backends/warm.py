"""Workers that need not import anything: forked from a process that already has, `python -m trainer_client.backends.warm FOLDER`.

Importing torch and transformers takes seconds, which a job would pay anew with every resize. The process in FOLDER has imported
what `launch_finetune` needs, has trained nothing and started no thread, and forks itself for each worker that a launcher asks for.
There is one for each FOLDER. It ends when nobody has asked for `IDLE_S`, when FOLDER is gone, or on SIGTERM; after its workers.

Every launch works without it: `ask` gives None where there is no such process, where it has imported other files than those that
are there now, or under variables that what it imported may have looked at.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import glob
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from trainer_client.backends import processes

IDLE_S = 300.0
LOOK_S = 2.0
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
        with _short(folder) as short:
            link.connect(f"{short}/{SOCKET}")
        hello = _received(link)
        if hello != greeting(env):
            raise OSError("it has imported something else")
        _send(link, {"argv": list(command[3:]), "env": dict(env), "cwd": os.getcwd()}, [writer])
        return WarmRank(link, int(_received(link)["pid"]), os.fdopen(reader, "rb", buffering=0))
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


def warm_up(folder: Path) -> None:
    """Start the process of `folder`, unless there is one. Returns at once."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.Popen(
        [sys.executable, "-m", "trainer_client.backends.warm", str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


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


# -- the process ----------------------------------------------------------------------------------------------------------


class Server:
    """Forks, and tells each launcher how its worker has ended."""

    def __init__(self, folder: Path, greets: dict[str, Any]) -> None:
        self._folder, self._greeting = folder, greets
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._children: dict[int, tuple[int, socket.socket]] = {}  # handle -> pid, link
        self._asked_at = time.monotonic()

    def run(self) -> None:
        with _short(self._folder) as short:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{short}/{SOCKET}")
            self._listener.bind(f"{short}/{SOCKET}")
            os.chmod(f"{short}/{SOCKET}", 0o600)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ, self._take)
        signal.signal(signal.SIGTERM, lambda *_: (self._folder / SOCKET).unlink(missing_ok=True))
        while self._is_wanted():
            for key, _ in self._selector.select(LOOK_S):
                key.data(key.fileobj)
        (self._folder / SOCKET).unlink(missing_ok=True)

    def _is_wanted(self) -> bool:
        idle = time.monotonic() - self._asked_at > IDLE_S
        return bool(self._children) or (not idle and (self._folder / SOCKET).exists())

    def _take(self, listener: socket.socket) -> None:
        link, _ = listener.accept()
        link.settimeout(ANSWER_S)
        self._asked_at = time.monotonic()
        try:
            _send(link, self._greeting)
            order, handles = _received_with_handles(link)
        except (OSError, ValueError):
            link.close()  # not wanted as it is
            return
        bind = processes.dies_with_parent()
        if (pid := os.fork()) == 0:
            self._become(order, handles[0], bind)
        os.close(handles[0])
        with contextlib.suppress(OSError):
            _send(link, {"pid": pid})
        handle = os.pidfd_open(pid)
        self._children[handle] = pid, link
        self._selector.register(handle, selectors.EVENT_READ, self._ended)
        self._selector.register(link, selectors.EVENT_READ, lambda _: self._left(handle))

    def _left(self, handle: int) -> None:
        """The launcher is gone, and its worker goes, too."""
        pid, link = self._children[handle]
        self._selector.unregister(link)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)

    def _ended(self, handle: int) -> None:
        pid, link = self._children.pop(handle)
        self._selector.unregister(handle)
        with contextlib.suppress(KeyError):
            self._selector.unregister(link)
        _, status = os.waitpid(pid, 0)
        with contextlib.suppress(OSError):
            link.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        link.close()
        os.close(handle)

    def _become(self, order: dict[str, Any], output: int, bind: Callable[[], None] | None) -> NoReturn:
        """The worker, in a process of its own from here on."""
        try:
            if bind is not None:
                bind()
            self._let_go()
            for own in (1, 2):
                os.dup2(output, own)
            os.close(output)
            os.chdir(order["cwd"])
            os.environ.clear()
            os.environ.update(order["env"])
            work(order["argv"])
        except BaseException:  # noqa: BLE001 - there is no caller to raise to
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(1)

    def _let_go(self) -> None:
        for handle, (_, link) in self._children.items():
            os.close(handle)
            link.close()
        self._listener.close()
        self._selector.close()


def work(argv: list[str]) -> None:
    """What `python -m trainer_client.launch_finetune ARGV` does, where everything has been imported."""
    import torch

    from trainer_client import launch_finetune

    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = [str(launch_finetune.__file__), *argv]
    if threads := os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(int(threads))
    launch_finetune.end_process(launch_finetune.main(argv))


def preload() -> None:
    """Import what a worker needs, down to what transformers imports and works out when a model is first loaded. No backward
    pass: its threads would not survive a fork."""
    import peft  # noqa: F401
    import torch
    from transformers import AutoModelForCausalLM

    import trainer_client.finetune  # noqa: F401
    from trainer_client.models import TinySpec

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        AutoModelForCausalLM.from_config(TinySpec.parse("tiny:60k").config(300, {}, 32)).save_pretrained(folder)
        AutoModelForCausalLM.from_pretrained(folder)(input_ids=torch.zeros(1, 4, dtype=torch.long))


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """A short name for `folder`: the address of a socket has room for a hundred bytes."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}"
    finally:
        os.close(handle)


def _send(link: socket.socket, content: dict[str, Any], handles: Sequence[int] = ()) -> None:
    body = json.dumps(content).encode()
    socket.send_fds(link, [LENGTH.pack(len(body))], list(handles)) if handles else link.sendall(LENGTH.pack(len(body)))
    link.sendall(body)


def _received(link: socket.socket) -> dict[str, Any]:
    return _received_with_handles(link)[0]


def _received_with_handles(link: socket.socket) -> tuple[dict[str, Any], list[int]]:
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


def main(folder: Path) -> int:
    """Be the one warm process of `folder`."""
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        (folder / "process.json").write_text(json.dumps(processes.identity(os.getpid())))
        greets = greeting(os.environ)  # before torch sets variables of its own
        preload()
        gc.collect()
        gc.freeze()  # what is never touched stays shared
        Server(folder, greets).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
