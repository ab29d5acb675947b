"""The process that workers are forked from: `python -m trainer_client.backends.warm_process FOLDER`. See `warm`."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import selectors
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from trainer_client.backends import processes, warm

IDLE_S = 900.0  # without a worker; a job often waits for machines from one plan, every five minutes, to the next
LOOK_S = 2.0


class Server:
    """Forks, and tells each launcher how its worker has ended."""

    def __init__(self, folder: Path, greets: dict[str, Any]) -> None:
        self._folder, self._greeting = folder, greets
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._children: dict[int, tuple[int, socket.socket]] = {}  # handle -> pid, link
        self._wanted_at = time.monotonic()

    def run(self) -> None:
        with warm.short_name(self._folder) as short:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{short}/{warm.SOCKET}")
            self._listener.bind(f"{short}/{warm.SOCKET}")
            os.chmod(f"{short}/{warm.SOCKET}", 0o600)
        self._listener.listen(64)
        self._selector.register(self._listener, selectors.EVENT_READ, self._take)
        signal.signal(signal.SIGTERM, lambda *_: (self._folder / warm.SOCKET).unlink(missing_ok=True))
        while self._is_wanted():
            for key, _ in self._selector.select(LOOK_S):
                if self._selector.get_map().get(key.fd) is key:  # not ended with one before it
                    key.data(key.fileobj)
        (self._folder / warm.SOCKET).unlink(missing_ok=True)

    def _is_wanted(self) -> bool:
        idle = time.monotonic() - self._wanted_at > IDLE_S
        return bool(self._children) or (not idle and (self._folder / warm.SOCKET).exists())

    def _take(self, listener: socket.socket) -> None:
        link, _ = listener.accept()
        link.settimeout(warm.ANSWER_S)
        try:
            warm.send(link, self._greeting)
            order, handles = warm.received_with_handles(link)
        except (OSError, ValueError):
            link.close()  # not wanted as it is
            return
        self._wanted_at = time.monotonic()
        bind = processes.dies_with_parent()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # or a worker would take it for the server's
        if (pid := os.fork()) == 0:
            self._become(order, handles[0], bind)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(handles[0])
        with contextlib.suppress(OSError):
            warm.send(link, {"pid": pid})
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
        self._wanted_at = time.monotonic()
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
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
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


def main(folder: Path) -> int:
    """Be the one warm process of `folder`."""
    with open(folder / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        (folder / "process.json").write_text(json.dumps(processes.identity(os.getpid())))
        greets = warm.greeting(os.environ)  # before torch sets variables of its own
        preload()
        gc.collect()
        gc.freeze()  # what is never touched stays shared
        Server(folder, greets).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
