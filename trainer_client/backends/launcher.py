"""The process that starts the ranks of one launch and stays with them: `python -m trainer_client.backends.launcher FOLDER`.

FOLDER holds `spec.json`; the launcher keeps `state.json` there up to date. It lives in its own session, so it survives
whoever started it; its ranks end with it. One rank ending badly stops the others within the grace time.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from trainer_client.backends import warm
from trainer_client.backends.base import LaunchSpec
from trainer_client.backends.failures import classify
from trainer_client.backends.processes import dies_with_parent, identity
from trainer_client.backends.ranklogs import RankLog, tail
from trainer_client.journal import write_durably
from trainer_client.protocol import CLEAN_EXITS

POLL_S = 0.05
LOST_GRACE_S = 10.0
WARM_AFTER_S = 15.0  # a job that lives for so long may be started again

Rank = subprocess.Popen[bytes] | warm.WarmRank


class Launcher:
    """One launch from start to end; see `run`."""

    def __init__(self, folder: Path, echo: bool = False) -> None:
        self.folder = folder
        self.spec = LaunchSpec.from_json(json.loads((folder / "spec.json").read_bytes()))
        self.run_dir = Path(self.spec.run_dir)
        self._echo: BinaryIO | None = sys.stdout.buffer if echo else None
        self._ranks: list[Rank] = []
        self._warm = warm_folder()
        self._warm_at = time.monotonic() + WARM_AFTER_S
        self._logs: list[RankLog] = []
        self._identities: list[dict[str, Any]] = []
        self._first_bad: int | None = None
        self._stop_asked = False
        self._kill_at: float | None = None

    def run(self) -> int:
        """Start, watch, write down the end. The exit code of the launch."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signum, self._on_signal)
        self._set_old_marker_aside()
        try:
            self._start_ranks()
        except OSError as error:
            self._end_all(signal.SIGKILL)
            self._write_state("exited", exit_code=127, failure_class="user_error", detail=f"cannot start: {error}")
            return 127
        self._write_state("running")
        while self._watch():
            time.sleep(POLL_S)
        return self._conclude()

    def _on_signal(self, *_: object) -> None:
        self._stop_asked = True

    def _set_old_marker_aside(self) -> None:
        """A completion marker of an earlier launch in the same run directory must not be taken for ours."""
        marker = self.run_dir / "result.json"
        if marker.exists():
            marker.replace(self.run_dir / "result-before.json")

    def _start_ranks(self) -> None:
        rendezvous = self.folder / f"rendezvous-{os.getpid()}"
        port = _free_port()
        for rank in range(self.spec.num_workers):
            process = self._started(self._environment(rank, rendezvous, port))
            self._ranks.append(process)
            self._identities.append(identity(process.pid))
            assert process.stdout is not None
            echo = self._echo if rank == 0 else None
            self._logs.append(RankLog(self.run_dir / "logs", rank, process.stdout, echo))  # type: ignore[arg-type]

    def _started(self, env: dict[str, str]) -> Rank:
        """A rank's process: forked from one that has imported everything, where there is one."""
        if self._warm is not None and (forked := warm.ask(self._warm, self.spec.command, env)) is not None:
            return forked
        return subprocess.Popen(
            self.spec.command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=dies_with_parent(),
        )

    def _environment(self, rank: int, rendezvous: Path, port: int) -> dict[str, str]:
        """What torchrun would set, a race-free file rendezvous, and as many threads as a rank's share of the cores.

        `COUNTERFLOW_PLACES` (a number for each rank) says which GPUs are used, as seen from here, where it is not the first ones.
        """
        spec = self.spec
        threads = max(1, len(os.sched_getaffinity(0)) // spec.num_workers)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("TORCHELASTIC")}
        return (
            inherited
            | {
                "OMP_NUM_THREADS": str(threads),
                "MKL_NUM_THREADS": str(threads),
                "TOKENIZERS_PARALLELISM": "false",
                "PYTHONUNBUFFERED": "1",
                "GLOO_SOCKET_IFNAME": "lo",
            }
            | spec.env
            | {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(spec.num_workers),
                "LOCAL_WORLD_SIZE": str(spec.num_workers),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "COUNTERFLOW_RENDEZVOUS": rendezvous.as_uri(),
                "COUNTERFLOW_RUN_DIR": spec.run_dir,
                "COUNTERFLOW_JOB": spec.job,
                "COUNTERFLOW_ATTEMPT": spec.attempt,
            }
            | _at_place(rank, inherited | spec.env)
        )

    def _watch(self) -> bool:
        """One look at all ranks; False when all have ended."""
        self._warm_up()
        codes = [process.poll() for process in self._ranks]
        if all(code is not None for code in codes):
            return False
        bad = [rank for rank, code in enumerate(codes) if code is not None and code not in CLEAN_EXITS]
        if bad and self._first_bad is None:
            self._first_bad = bad[0]
        finished = any(code is not None for code in codes)
        if self._kill_at is None and (self._stop_asked or finished):
            # A rank that has left cleanly is followed by the others by themselves; they get the grace time for it.
            if self._stop_asked or bad:
                self._end_all(signal.SIGTERM)
            grace_s = self._grace_s() if self._stop_asked or not bad else min(self.spec.grace_s, LOST_GRACE_S)
            self._kill_at = time.monotonic() + grace_s
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._end_all(signal.SIGKILL)
        return True

    def _warm_up(self) -> None:
        """Once the ranks have long been under way: get ready for the next attempt."""
        if self._warm is None or time.monotonic() < self._warm_at:
            return
        if warm.can_be_warm(self.spec.command):
            warm.warm_up(self._warm, os.environ | self.spec.env)
        self._warm = None

    def _grace_s(self) -> float:
        """The grace of the stop order where there is one, else the spec's."""
        try:
            return float(json.loads((self.folder / "stop.json").read_bytes())["grace_s"])
        except (OSError, ValueError, KeyError, TypeError):
            return self.spec.grace_s

    def _end_all(self, signum: int) -> None:
        for process in self._ranks:
            if process.poll() is None:
                process.send_signal(signum)

    def _conclude(self) -> int:
        for log in self._logs:
            log.join(5.0)
        codes = {rank: process.returncode or 0 for rank, process in enumerate(self._ranks)}
        tails = {rank: tail(log.path) for rank, log in enumerate(self._logs)}
        failure_class, detail = classify(codes, self._first_bad, tails)
        first = codes[self._first_bad] if self._first_bad is not None else max(codes.values())
        exit_code = first if first >= 0 else 128 - first
        self._write_state("exited", exit_code=exit_code, failure_class=failure_class, detail=detail)
        return exit_code

    def _write_state(self, state: str, **fields: Any) -> None:
        workers = [
            {"rank": rank, "exit_code": process.poll(), **self._identities[rank]}
            for rank, process in enumerate(self._ranks)
        ]
        body = {"state": state, "launcher": identity(os.getpid()), "workers": workers, "ended_at": None} | fields
        if state == "exited":
            body["ended_at"] = time.time()
        write_durably(self.folder / "state.json", json.dumps(body).encode())


def warm_folder() -> Path | None:
    """Where the warm process is; None where there shall be none."""
    given = os.environ.get("COUNTERFLOW_WARM_DIR", "")
    return Path(given) if given not in ("", "off") else None


def _at_place(rank: int, env: Mapping[str, str]) -> dict[str, str]:
    """The place of a rank and the GPUs of all places; nothing where ranks are in order."""
    places = [int(place) for place in env.get("COUNTERFLOW_PLACES", "").split(",") if place.strip().isdigit()]
    if rank >= len(places):
        return {}
    seen = [gpu for gpu in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    used = [seen[place] for place in places if place < len(seen)] if seen else list(map(str, places))
    return {"COUNTERFLOW_PLACE": str(places[rank])} | ({"CUDA_VISIBLE_DEVICES": ",".join(used)} if used else {})


def _free_port() -> int:
    """For scripts that rendezvous by MASTER_PORT; ours use the file, which cannot be taken by another."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main(folder: str) -> int:
    """Run the launch of `folder`, unless another launcher already does."""
    with open(Path(folder) / "launcher.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return 0
        return Launcher(Path(folder)).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
