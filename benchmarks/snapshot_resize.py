"""A resize from end to end, against stopping at once and starting again from the last checkpoint. Part of `bench_snapshot.py`.

Both run real workers under the local backend, against a small HTTP server that speaks the trainer protocol. Resize: from the
order in a reply until the first step of the new world has been reported. Restart: workers are killed in the middle between two
snapshots; until the step that was lost has been done again.
"""

from __future__ import annotations

import gzip
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from trainer_client.backends import LaunchSpec, warm
from trainer_client.backends.local import LocalBackend

WAIT_S = 300.0


class Server(ThreadingHTTPServer):
    """Knows the newest step, and hands out one directive when told to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.step = -1
        self.attempt = ""
        self.directives: list[dict[str, Any]] = []
        self.asked_at = self.reached_at = 0.0
        self.wanted = 10**9
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def take(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        self.step = max([self.step, *body.get("steps", {}).get("step", [])])
        if self.step >= self.wanted and not self.reached_at:
            self.reached_at = time.monotonic()
        handed, self.directives = self.directives, []
        if handed:
            self.asked_at = time.monotonic()
        return handed


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        body = json.loads(gzip.decompress(raw) if self.headers.get("Content-Encoding") == "gzip" else raw)
        directives = self.server.take(body) if body.get("worker") == 0 else []
        content = json.dumps({"protocol": 1, "directives": directives, "report_interval_s": 0.1}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class Run:
    """One job in a folder of its own."""

    def __init__(self, folder: Path, shards: Path, model: str, snapshot_every: int) -> None:
        self.folder, self.shards, self.model, self.snapshot_every = folder, shards, model, snapshot_every
        self.handles: list[Any] = []
        self.backend, self.server, self.number = LocalBackend(folder / "local"), Server(), 0

    def launch(self, num_workers: int) -> Any:
        self.number += 1
        run_dir = self.folder / f"run-{self.number}"
        words = [sys.executable, "-m", "trainer_client.launch_finetune", "--model", self.model, "--resume"]
        words += ["--shard_config", str(self.shards), "--gradient_snapshot_dir", str(self.folder / "snapshots")]
        words += ["--run_dir", str(run_dir), "--steps", "1000000", "--global_batch", "4", "--micro_batch", "1"]
        words += ["--seq_len", "32", "--snapshot_every", str(self.snapshot_every), "--export_every", "0"]
        env = {"COUNTERFLOW_URL": f"http://127.0.0.1:{self.server.server_address[1]}", "COUNTERFLOW_TOKEN": "cf_bench"}
        env["COUNTERFLOW_FENCE"] = str(self.number)
        claim = f"bench-{os.getpid()}-{self.folder.name}-{self.number}"
        spec = LaunchSpec(claim, "bench", f"bench-{self.number}", words, env, num_workers, str(run_dir))
        self.handles.append(self.backend.launch(spec))
        return self.handles[-1]

    def end(self) -> None:
        """Nothing of it goes on running."""
        for handle in self.handles:
            self.backend.stop(handle, 0.0)
            self.backend.wait(handle, WAIT_S)
        self.server.shutdown()


def measure_resize(folder: Path, model: str, snapshot_every: int) -> dict[str, Any]:
    """Seconds of both ways, from two workers to one; and of a resize whose new workers have to import everything themselves."""
    found: dict[str, Any] = {"model": model, "snapshot_every_steps": snapshot_every}
    with from_cold():
        cold = _in_a_run(folder / "cold", model, snapshot_every, _resize)
    with from_warm(folder / "warm"):
        found |= _in_a_run(folder / "resize", model, snapshot_every, _resize)
    found["resize_from_cold_s"] = cold["resize_s"]
    with from_cold():
        return found | _in_a_run(folder / "restart", model, snapshot_every, _restart)


def resize_s(folder: Path, model: str) -> float:
    """Seconds of one resize from two workers to one, as of a job that has run for a while. `folder` has `shard_config.yaml`."""
    with from_warm(folder / "warm"):
        return float(_in_a_run(folder / "resize", model, 20, _resize)["resize_s"])


def _in_a_run(
    folder: Path, model: str, snapshot_every: int, measure: Callable[[Run], dict[str, Any]]
) -> dict[str, Any]:
    run = Run(folder, folder.parent / "shard_config.yaml", model, snapshot_every)
    try:
        return measure(run)
    finally:
        run.end()


@contextmanager
def from_warm(folder: Path) -> Iterator[None]:
    """Workers are forked from a process that has imported everything."""
    before = os.environ.get("COUNTERFLOW_WARM_DIR")
    os.environ["COUNTERFLOW_WARM_DIR"] = str(folder)
    warm.warm_up(folder)
    wait((folder / warm.SOCKET).exists, "it is warm")
    yield
    warm.cool_down(folder)
    _set_back(before)


@contextmanager
def from_cold() -> Iterator[None]:
    """Workers are new processes."""
    before = os.environ.get("COUNTERFLOW_WARM_DIR")
    os.environ["COUNTERFLOW_WARM_DIR"] = "off"
    yield
    _set_back(before)


def _set_back(before: str | None) -> None:
    del os.environ["COUNTERFLOW_WARM_DIR"]
    os.environ |= {"COUNTERFLOW_WARM_DIR": before} if before is not None else {}


def _resize(run: Run) -> dict[str, Any]:
    first = run.launch(2)
    wait(lambda: run.server.step >= run.snapshot_every // 2, "some steps")
    run.server.directives = [{"id": "d-1", "action": "resize", "args": {"num_workers": 1}, "not_before_step": 0}]
    seen = run.backend.wait(first, WAIT_S)
    left_at = time.monotonic()
    assert seen.exit_code == 80, seen
    assert seen.result is not None
    run.server.wanted = seen.result["step"]
    run.launch(1)
    wait(lambda: bool(run.server.reached_at), "the first step at the new size")
    leave_s, start_s = left_at - run.server.asked_at, run.server.reached_at - left_at
    told = {"resize_leave_s": leave_s, "resize_start_s": start_s, "resize_s": leave_s + start_s}
    return {name: round(value, 2) for name, value in told.items()} | {"resize_lost_steps": 0}


def _restart(run: Run) -> dict[str, Any]:
    first = run.launch(2)
    wait(lambda: run.server.step >= run.snapshot_every * 3 // 2, "the middle between two snapshots")
    for worker in run.backend.poll(first).workers:
        os.kill(worker.pid, signal.SIGKILL)  # type: ignore[arg-type]
    began, lost = time.monotonic(), run.server.step
    run.backend.wait(first, WAIT_S)
    run.server.step, run.server.wanted = -1, lost + 1
    run.launch(1)
    wait(lambda: bool(run.server.reached_at), "the step that was lost is done again")
    lost_steps = (lost + 1) % run.snapshot_every
    return {"restart_s": round(run.server.reached_at - began, 2), "restart_lost_steps": lost_steps}


def wait(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not within {WAIT_S:g} s: {what}")
        time.sleep(0.01)
