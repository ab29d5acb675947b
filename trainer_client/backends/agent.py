"""The agent of one machine: `python -m trainer_client.backends.agent FOLDER`, started when the machine boots.

It says in its folder that the machine lives, runs the rank that the order there names (through `rank_keeper`), ends it when the
launch is stopped or another of its ranks is lost, and passes on the notice by which EC2 takes the machine. The order to leave is
the server's; where none has come shortly before the end, the agent lets its rank save by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from trainer_client.backends.base import BackendError, LaunchSpec
from trainer_client.backends.machine_files import SILENT_S, MachineFiles
from trainer_client.backends.processes import dies_with_parent
from trainer_client.backends.rank_files import rank_records, read_json
from trainer_client.backends.spot_notice import SpotNotice
from trainer_client.journal import write_durably
from trainer_client.protocol import CLEAN_EXITS, EXIT_STOPPED

LOOK_S = 0.25
SIGN_S = 2.0
FATE_S = 1.0  # between looks at the other ranks, each a few files of every one
NOTICE_S = 5.0  # as Amazon advises
MARGIN_S = 30.0  # beside the grace time, before the machine is taken: for the micro-batch under way
LOST_GRACE_S = 10.0  # for ranks that lost another one


class Agent:
    """One machine from boot to end; see `run`."""

    def __init__(self, folder: Path, once: bool = False) -> None:
        self.files = MachineFiles(folder.parent, folder.name)
        self.root = folder.parent
        self._once = once
        self._over = threading.Event()
        self._next_sign = self._next_fate = 0.0
        self._keeper: subprocess.Popen[bytes] | None = None
        self._spec: LaunchSpec | None = None
        self._launch: tuple[Path, int] | None = None
        self._told = False  # the keeper was sent SIGTERM
        self._kill_at: float | None = None
        self.ends_by: float | None = None  # unix seconds at which the machine is taken, where there is a notice
        self._signs: dict[str, tuple[Any, float]] = {}  # machine -> its last sign, and when it changed by our own clock

    def run(self) -> None:
        """Until SIGTERM: the machine shuts down, and its rank leaves before."""
        self.files.make()
        signal.signal(signal.SIGTERM, lambda *_: self._over.set())
        while not self._over.wait(LOOK_S):
            self._try(self._sign)
            self._try(self._look)
        while self._runs():  # it is saving, and the machine still lives
            self._end()
            self._try(self._sign)
            time.sleep(LOOK_S)
        self._try(self._conclude)

    def _try(self, act: Callable[[], None]) -> None:
        """The shared folder may be away for a moment."""
        try:
            act()
        except (BackendError, OSError, ValueError) as error:
            print(f"agent: {error}", file=sys.stderr, flush=True)

    def _sign(self) -> None:
        """Say now and then that the machine lives."""
        if time.monotonic() >= self._next_sign:
            self.files.agent_write({"pid": os.getpid(), "address": _address()})
            self._next_sign = time.monotonic() + SIGN_S

    def is_first(self) -> bool:
        """False where an agent was started in the folder before."""
        self.files.make()
        try:
            (self.files.folder / "agent.started").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def watch_notices(self, notices: SpotNotice) -> None:
        """Ask for a notice now and then, beside the rest: the metadata service may be slow. Ends with the first."""
        while not self._over.is_set():
            with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, OSError):
                if (ends_by := notices.ends_by()) is not None:
                    self.ends_by = ends_by
                    self.files.notice_write(ends_by)
                    return
            self._over.wait(NOTICE_S)

    def _runs(self) -> bool:
        return self._keeper is not None and self._keeper.poll() is None

    def _look(self) -> None:
        if self._runs():
            self._watch_rank()
            return
        self._conclude()
        if self._once and self._launch is not None:
            self._over.set()
            return
        order = self.files.order()
        wanted = (Path(order["folder"]), int(order["rank"])) if order else None
        if wanted is not None and wanted != self._launch:
            self._start(*wanted)

    def _start(self, folder: Path, rank: int) -> None:
        """Run the rank. What cannot be read or begun now is tried again at the next look."""
        if (folder / "stop.json").exists():
            body = {"rank": rank, "exit_code": EXIT_STOPPED, "ended_at": time.time()}
            write_durably(folder / "ranks" / f"rank-{rank}.json", json.dumps(body).encode())
            self._launch = folder, rank
            return
        self._spec = LaunchSpec.from_json(json.loads((folder / "spec.json").read_bytes()))
        own = {"RANK": str(rank), "COUNTERFLOW_NODE_IP": _address(), "COUNTERFLOW_FORWARD_TERM": "1"}
        inherited = {key: value for key, value in os.environ.items() if key not in ("MASTER_ADDR", "MASTER_PORT")}
        argv = [sys.executable, "-m", "trainer_client.backends.rank_keeper", str(folder)]
        self._keeper = subprocess.Popen(
            argv, env=inherited | own, stdin=subprocess.DEVNULL, preexec_fn=dies_with_parent()
        )
        self._launch, self._told, self._kill_at, self._signs = (folder, rank), False, None, {}

    def _conclude(self) -> None:
        """A keeper that was killed has left no word of its rank, which ended with it."""
        if self._keeper is None or self._launch is None:
            return
        folder, rank = self._launch
        path = folder / "ranks" / f"rank-{rank}.json"
        record = read_json(path) or {"rank": rank}
        if record.get("exit_code") is None:
            ended = {"exit_code": self._keeper.returncode, "ended_at": time.time()}
            write_durably(path, json.dumps(record | ended).encode())
        self._keeper = None

    def _watch_rank(self) -> None:
        """End our rank when the launch is stopped, when another rank is lost, or when it stays on after the others have left."""
        assert self._launch is not None
        assert self._spec is not None
        (folder, rank), spec = self._launch, self._spec
        if (folder / "stop.json").exists() or self.leaves_unasked(spec):
            self._end()  # the keeper knows the grace time
        elif self._kill_at is None and time.monotonic() >= self._next_fate:
            self._next_fate = time.monotonic() + FATE_S
            fate = self._fate_of_others(folder, spec, rank)
            if fate == "lost":
                self._end()
                self._kill_at = time.monotonic() + min(spec.grace_s, LOST_GRACE_S)
            elif fate == "left":
                self._kill_at = time.monotonic() + spec.grace_s
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            own = rank_records(folder, spec.num_workers)[rank]
            if own.get("pid") and own.get("exit_code") is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(own["pid"], signal.SIGKILL)

    def leaves_unasked(self, spec: LaunchSpec) -> bool:
        """Whether the machine is taken so soon that the rank saves now, though no order has come: the server may be away."""
        return self.ends_by is not None and time.time() >= self.ends_by - spec.grace_s - MARGIN_S

    def _fate_of_others(self, folder: Path, spec: LaunchSpec, rank: int) -> str:
        """`lost` if a rank failed or its machine is gone, `left` if one has left in order, else empty."""
        codes = []
        for record, machine in zip(rank_records(folder, spec.num_workers), spec.machines, strict=True):
            code = record.get("exit_code")
            if record["rank"] != rank:
                codes.append(-signal.SIGKILL if code is None and self._is_silent(machine) else code)
        if any(code is not None and code not in CLEAN_EXITS for code in codes):
            return "lost"
        return "left" if any(code is not None for code in codes) else ""

    def _is_silent(self, machine: str) -> bool:
        """By changes that this machine sees, not by the other's clock."""
        files, now = MachineFiles(self.root, machine), time.monotonic()
        sign = files.agent()
        if machine not in self._signs or self._signs[machine][0] != sign:
            self._signs[machine] = (sign, now)
        return files.is_gone() or now - self._signs[machine][1] > SILENT_S

    def _end(self) -> None:
        if not self._told and self._keeper is not None:
            self._keeper.terminate()
            self._told = True


def _address() -> str:
    """This machine, as the others can reach it."""
    if given := os.environ.get("COUNTERFLOW_NODE_IP"):
        return given
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent: the kernel only chooses the way out
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


def main() -> None:
    words = argparse.ArgumentParser(prog="agent", description="Runs the ranks that the server orders on this machine.")
    words.add_argument("folder", type=Path, help="the machine's folder on the shared file system")
    words.add_argument("--spot-notices", action="store_true", help="ask EC2 whether it takes the machine")
    words.add_argument(
        "--once", action="store_true", help="leave after one rank; a second start in the folder does nothing"
    )
    options = words.parse_args()
    agent = Agent(options.folder.resolve(), options.once)
    if options.once and not agent.is_first():
        return
    if options.spot_notices:
        threading.Thread(target=agent.watch_notices, args=(SpotNotice(),), daemon=True).start()
    agent.run()


if __name__ == "__main__":
    main()
