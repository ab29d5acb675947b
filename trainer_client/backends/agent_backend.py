"""Training processes on bought machines, one rank each, through the agents that run on them (`agent.py`).

Orders, ends of ranks and signs of life go through a file system that the server and all machines share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_client.backends.base import BackendError, Handle, LaunchSpec, Observation
from trainer_client.backends.machine_files import MachineFiles
from trainer_client.backends.rank_files import (
    claim_locked,
    conclude,
    launch_folder,
    rank_records,
    rank_seen,
    read_json,
    result_of,
)
from trainer_client.backends.restarts import Restarting
from trainer_client.journal import write_durably

LIVING = ("starting", "running")


class AgentBackend(Restarting):
    """See the module. `root`: where machines have their folders (default `COUNTERFLOW_MACHINES_ROOT`)."""

    name = "aws"

    def __init__(self, root: str | Path | None = None) -> None:
        if not (found := root or os.environ.get("COUNTERFLOW_MACHINES_ROOT")):
            raise BackendError("COUNTERFLOW_MACHINES_ROOT is not set; see docs/backends.md", permanent=True)
        self.root = Path(found).resolve()

    def launch(self, spec: LaunchSpec) -> Handle:
        if len(spec.machines) != spec.num_workers:
            said = f"{spec.num_workers} ranks need as many machines, not {len(spec.machines)}"
            raise BackendError(said, permanent=True)
        try:
            with claim_locked(spec) as folder:
                return self._launch_once(spec, folder)
        except OSError as error:
            raise BackendError(f"cannot launch in {spec.run_dir}: {error}") from error

    def _launch_once(self, spec: LaunchSpec, folder: Path) -> Handle:
        """Under the claim's lock. Orders come before the handle: a later launch on the same machines is never overwritten."""
        handle = read_json(folder / "handle.json")
        if handle is not None:
            return handle
        launch_folder(spec)
        handle = self._handle(spec, folder)
        self._note(handle)
        for rank, machine in enumerate(spec.machines):
            MachineFiles(self.root, machine).order_write(folder, rank)
        write_durably(folder / "handle.json", json.dumps(handle).encode())
        return handle

    def _handle(self, spec: LaunchSpec, folder: Path) -> Handle:
        return {
            "backend": self.name,
            "claim": spec.claim,
            "folder": str(folder),
            "machines": list(spec.machines),
            "tags": dict(spec.tags) | {"job": spec.job, "attempt": spec.attempt},
            "num_workers": spec.num_workers,
        }

    def poll(self, handle: Handle) -> Observation:
        folder, num_workers = Path(handle["folder"]), int(handle["num_workers"])
        machines = [MachineFiles(self.root, machine) for machine in handle["machines"]]
        living = [machine.lives() for machine in machines]
        records = rank_records(folder, num_workers)
        runs = [lives and record.get("exit_code") is None for lives, record in zip(living, records, strict=True)]
        if not any(runs):
            gone = [machine.folder.name for machine, lives in zip(machines, living, strict=True) if not lives]
            return conclude(folder, num_workers, said=f"machines gone: {', '.join(gone) or 'none'}")
        workers = [rank_seen(record, alive=lives) for record, lives in zip(records, living, strict=True)]
        if not any("pid" in record or "exit_code" in record for record in records):
            return Observation("starting", workers, detail="the agents of the machines have not started it yet")
        return Observation("running", workers, result=result_of(folder))

    def stop(self, handle: Handle, grace_s: float) -> None:
        folder = Path(handle["folder"])
        if folder.is_dir() and not (folder / "stop.json").exists():
            body = {"grace_s": grace_s, "asked_at": time.time()}
            write_durably(folder / "stop.json", json.dumps(body).encode())

    def quotes(self, offers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Machines are priced by the market's feeds: the offer's own words count."""
        return [{"price_usd_per_hour": 0.0, "availability": 1} | offer for offer in offers]

    def _noted(self) -> list[Handle]:
        """Every launch that was not seen to be over."""
        notes = (read_json(path) for path in sorted(self._listed("*").parent.glob("*.json")))
        return [handle for handle in notes if handle is not None]

    def _note(self, handle: Handle) -> None:
        listed = self._listed(handle["claim"])
        listed.parent.mkdir(parents=True, exist_ok=True)
        write_durably(listed, json.dumps(handle).encode())

    def _forget(self, handle: Handle) -> None:
        """It is over; one that is being launched in this moment is not."""
        folder = Path(handle["folder"])
        if (folder / "handle.json").exists() or not folder.is_dir():
            self._listed(handle["claim"]).unlink(missing_ok=True)

    def list(self, tag: str = "") -> list[Handle]:
        key, _, value = tag.partition("=")
        found = []
        for handle in self._noted():
            if tag and str(handle["tags"].get(key)) != value:
                continue
            if self.poll(handle).state in LIVING:
                found.append(handle)
            else:
                self._forget(handle)
        return found

    def _listed(self, claim: str) -> Path:
        return self.root / "launches" / f"{claim}.json"
