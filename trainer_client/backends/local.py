"""Training processes on this machine: gloo on CPU, nccl on GPUs.

Each launch has a folder `{run_dir}/launches/{claim}/` with `spec.json`, `state.json`, logs beside it in `{run_dir}/logs/`,
and an entry `{root}/{claim}.json` by which `list` finds it. Who launched may die; who polls may be another process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainer_client.backends import processes
from trainer_client.backends.base import BackendError, Handle, LaunchSpec, Observation, WorkerObservation
from trainer_client.backends.restarts import Restarting
from trainer_client.journal import write_durably

START_WAIT_S = 30.0


class LocalBackend(Restarting):
    """See the module. `root`: where launches are registered (default `COUNTERFLOW_LOCAL_ROOT` or ~/.counterflow/local)."""

    name = "local"

    def __init__(self, root: str | Path | None = None) -> None:
        default = os.environ.get("COUNTERFLOW_LOCAL_ROOT") or Path.home() / ".counterflow" / "local"
        self.root = Path(root or default).resolve()

    def launch(self, spec: LaunchSpec) -> Handle:
        folder = Path(spec.run_dir).resolve() / "launches" / spec.claim
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.root.mkdir(parents=True, exist_ok=True)
            with _locked(folder / "claim.lock"):
                return self._launch_once(spec, folder)
        except OSError as error:
            raise BackendError(f"cannot launch in {spec.run_dir}: {error}", permanent=False) from error

    def _launch_once(self, spec: LaunchSpec, folder: Path) -> Handle:
        """Under the claim's lock: what stands already is returned, what an earlier caller left half done is done."""
        handle = _read(folder / "handle.json")
        if handle is not None and (_read(folder / "state.json") or processes.alive(handle["launcher"])):
            return handle
        write_durably(folder / "spec.json", json.dumps(spec.to_json()).encode())
        with open(folder / "launcher.log", "ab") as output:
            launcher = subprocess.Popen(
                [sys.executable, "-m", "trainer_client.backends.launcher", str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={"COUNTERFLOW_WARM_DIR": str(self.root / "warm")} | os.environ | {"PYTHONPATH": _python_path()},
            )
        handle = {
            "backend": self.name,
            "claim": spec.claim,
            "folder": str(folder),
            "launcher": processes.identity(launcher.pid),
            "tags": dict(spec.tags) | {"job": spec.job, "attempt": spec.attempt},
            "num_workers": spec.num_workers,
        }
        write_durably(folder / "handle.json", json.dumps(handle).encode())
        write_durably(self.root / f"{spec.claim}.json", json.dumps(handle).encode())
        return handle

    def poll(self, handle: Handle) -> Observation:
        folder = Path(handle["folder"])
        _reap(handle)
        # Alive is asked first: a launcher that ends between the two questions has then left its state.
        launcher_alive = processes.alive(handle["launcher"])
        state = _read(folder / "state.json")
        if state is None:
            if launcher_alive:
                return Observation("starting")
            return Observation("lost", detail=f"the launcher ended before it started anything: {_log_tail(folder)}")
        workers = [_worker(raw) for raw in state["workers"]]
        result = self._result(handle)
        if state["state"] == "exited":
            code = result["exit_code"] if result else state["exit_code"]
            detail, kind = state.get("detail", ""), state.get("failure_class")
            if result:
                detail, kind = result.get("message") or detail, result.get("failure_class")
                if result["outcome"] == "failed":
                    kind = kind or state.get("failure_class") or "crashed"
            return Observation("exited", workers, code, result, detail, kind)
        if launcher_alive:
            return Observation("running", workers, result=result)
        if any(worker.alive for worker in workers):
            return Observation("running", workers, result=result, detail="the launcher is gone; its workers are ending")
        if result:
            return Observation(
                "exited", workers, result["exit_code"], result, result.get("message", ""), result.get("failure_class")
            )
        return Observation("lost", workers, detail="launcher and workers are gone without a word")

    def stop(self, handle: Handle, grace_s: float) -> None:
        folder = Path(handle["folder"])
        if folder.is_dir():
            write_durably(folder / "stop.json", json.dumps({"grace_s": grace_s}).encode())
        if processes.send(handle["launcher"], signal.SIGTERM):
            return
        for raw in (_read(folder / "state.json") or {}).get("workers", []):
            processes.send(raw, signal.SIGKILL)

    def quotes(self, offers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """This machine costs nothing by the hour and has as many places as cores or GPUs."""
        places = len(os.sched_getaffinity(0))
        return [offer | {"price_usd_per_hour": 0.0, "availability": places} for offer in offers]

    def list(self, tag: str = "") -> list[Handle]:
        key, _, value = tag.partition("=")
        found = []
        for path in sorted(self.root.glob("*.json")):
            handle = _read(path)
            if handle is None or (tag and str(handle["tags"].get(key)) != value):
                continue
            if self.poll(handle).state in {"starting", "running"}:
                found.append(handle)
        return found

    @staticmethod
    def _result(handle: Handle) -> dict[str, Any] | None:
        """The completion marker of this launch (the launcher sets older ones aside)."""
        return _read(Path(handle["folder"]).parent.parent / "result.json")


def _worker(raw: dict[str, Any]) -> WorkerObservation:
    return WorkerObservation(raw["rank"], raw["pid"], processes.alive(raw), raw["exit_code"])


def _read(path: Path) -> dict[str, Any] | None:
    try:
        body: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise BackendError(f"{path} is unreadable: {error}", permanent=True) from error
    return body


def _reap(handle: Handle) -> None:
    """Where the caller is the launcher's parent, take its exit status, so that it does not stay a zombie."""
    with contextlib.suppress(ChildProcessError, OSError):
        os.waitpid(handle["launcher"]["pid"], os.WNOHANG)


def _log_tail(folder: Path) -> str:
    from trainer_client.backends.ranklogs import tail

    return tail(folder / "launcher.log", 500).strip() or "no output"


def _python_path() -> str:
    """This package first, wherever the caller found it."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    return os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclusive between processes and threads; given back by the kernel when the holder dies."""
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
