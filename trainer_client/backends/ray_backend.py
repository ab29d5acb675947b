"""Training processes on a Ray cluster: a job of Ray's job server a launch, a placement group, one bundle of it a rank.

The run directory lies on a file system that the server and all nodes share, and the code is on every node.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_client.backends.base import BackendError, Handle, LaunchSpec, Observation
from trainer_client.backends.rank_files import claim_locked, conclude, launch_folder, observe, read_json, result_of
from trainer_client.backends.ray_api import RayJobs
from trainer_client.backends.restarts import EXIT_MARGIN_S, Restarting
from trainer_client.journal import write_durably

PREFIX = "cf-"
LIVING = frozenset({"PENDING", "RUNNING"})


class RayBackend(Restarting):
    """See the module. What is not given comes from `COUNTERFLOW_RAY_…`; `docs/backends.md` has the list."""

    name = "ray"

    def __init__(self, address: str = "", python: str = "", bundle: dict[str, float] | None = None) -> None:
        said = os.environ.get
        address = address or said("COUNTERFLOW_RAY_ADDRESS", "")
        if not address:
            raise BackendError("COUNTERFLOW_RAY_ADDRESS is not set; see docs/backends.md", permanent=True)
        self._jobs = RayJobs(address)
        self.python = python or said("COUNTERFLOW_RAY_PYTHON") or sys.executable
        gpus = float(said("COUNTERFLOW_RAY_GPUS_PER_WORKER", "0"))
        cpus = float(said("COUNTERFLOW_RAY_CPUS_PER_WORKER", "1"))
        self.bundle = bundle or ({"CPU": cpus} | ({"GPU": gpus} if gpus else {}))
        self.spot_resource = said("COUNTERFLOW_RAY_SPOT_RESOURCE", "")

    def launch(self, spec: LaunchSpec) -> Handle:
        """The number of Ray's job is made from the claim: of many callers the job server lets one submit it."""
        try:
            with claim_locked(spec) as folder:
                job = self._jobs.job(PREFIX + spec.claim)
                if job is None:
                    launch_folder(spec)
                    self._jobs.submit(self._order(spec, folder))
        except OSError as error:
            raise BackendError(f"cannot launch in {spec.run_dir}: {error}") from error
        return _handle(self._metadata(spec, folder))

    def _order(self, spec: LaunchSpec, folder: Path) -> dict[str, Any]:
        bundle = self.bundle
        if spec.spot == "only":
            if not self.spot_resource:
                raise BackendError("no spot resource is named (COUNTERFLOW_RAY_SPOT_RESOURCE)", permanent=True)
            bundle = bundle | {self.spot_resource: 0.001}
        variables = {"COUNTERFLOW_RAY_BUNDLE": json.dumps(bundle), "PYTHONPATH": _python_path()}
        return {
            "submission_id": PREFIX + spec.claim,
            "entrypoint": f"exec {self.python} -m trainer_client.backends.ray_driver '{folder}'",
            "runtime_env": {"env_vars": variables},
            "metadata": self._metadata(spec, folder),
        }

    def _metadata(self, spec: LaunchSpec, folder: Path) -> dict[str, str]:
        tags = {str(k): str(v) for k, v in spec.tags.items()} | {"job": spec.job, "attempt": spec.attempt}
        return {
            "claim": spec.claim,
            "folder": str(folder),
            "tags": json.dumps(tags, sort_keys=True),
            "num_workers": str(spec.num_workers),
        }

    def poll(self, handle: Handle) -> Observation:
        folder, num_workers = Path(handle["folder"]), int(handle["num_workers"])
        job = self._jobs.job(handle["id"])
        if job is None:
            return conclude(folder, num_workers, said=f"Ray no longer knows job {handle['id']}")
        if job["status"] not in LIVING:
            said = f"Ray job {handle['id']} ended: {job['status'].lower()}; {job.get('message') or ''}"
            return conclude(folder, num_workers, said=said[:500])
        workers = observe(folder, num_workers, alive=True)
        if not any(worker.pid for worker in workers):
            what = "waits for its placement group" if (folder / "started.json").exists() else "starts"
            return Observation("starting", workers, detail=f"Ray job {handle['id']} {what}")
        return Observation("running", workers, result=result_of(folder))

    def stop(self, handle: Handle, grace_s: float) -> None:
        """The ranks see the order in their folder. Ray's own stop, which gives three seconds, is for drivers that do not end."""
        folder = Path(handle["folder"])
        job = self._jobs.job(handle["id"])
        if job is None or job["status"] not in LIVING:
            return
        order = read_json(folder / "stop.json")
        overdue = order is not None and time.time() > order["asked_at"] + order["grace_s"] + EXIT_MARGIN_S
        if overdue or not folder.is_dir() or not (folder / "started.json").exists():
            self._jobs.stop(handle["id"])
        elif order is None or order.get("term_at"):
            body = {"grace_s": grace_s, "asked_at": time.time()}
            write_durably(folder / "stop.json", json.dumps(body).encode())

    def quotes(self, offers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Ray has no prices: the offer's own words count."""
        return [{"price_usd_per_hour": 0.0, "availability": 1} | offer for offer in offers]

    def list(self, tag: str = "") -> list[Handle]:
        key, _, value = tag.partition("=")
        found = []
        for job in self._jobs.jobs():
            if not str(job.get("submission_id") or "").startswith(PREFIX) or job["status"] not in LIVING:
                continue
            handle = _handle(job.get("metadata") or {})
            if not tag or handle["tags"].get(key) == value:
                found.append(handle)
        return found


def _handle(metadata: dict[str, str]) -> Handle:
    return {
        "backend": "ray",
        "claim": metadata["claim"],
        "id": PREFIX + metadata["claim"],
        "folder": metadata["folder"],
        "tags": json.loads(metadata["tags"]),
        "num_workers": int(metadata["num_workers"]),
    }


def _python_path() -> str:
    """This package first, wherever the caller found it."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    return os.pathsep.join(part for part in (here, os.environ.get("PYTHONPATH", "")) if part)
