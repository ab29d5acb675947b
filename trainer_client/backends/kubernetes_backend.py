"""Training processes as Kubernetes Jobs: one Indexed Job a launch, one pod a rank, quotas by Kueue where a queue is named. Where a
runtime of Kubeflow Trainer is named, one TrainJob a launch.

The run directory lies on a volume that the server and all pods mount at the same path. A Job never replaces a pod: what the
cluster takes away is started as a new attempt, which has a fencing token of its own.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainer_client.backends import kubernetes_states as states
from trainer_client.backends.base import BackendError, Handle, LaunchSpec, Observation
from trainer_client.backends.kubernetes_api import KubernetesApi
from trainer_client.backends.kubernetes_objects import (
    CLAIM,
    FOLDER,
    JOB,
    KEPT_S,
    MARGIN_S,
    TAGS,
    WORKERS,
    job_object,
    object_name,
    service_object,
)
from trainer_client.backends.kubernetes_place import Place, place_from
from trainer_client.backends.kubernetes_trainjobs import (
    TRAIN_JOB,
    job_of,
    trainjob_object,
    unfit,
)
from trainer_client.backends.rank_files import claim_locked, conclude, launch_folder, observe, result_of
from trainer_client.backends.restarts import Restarting
from trainer_client.journal import write_durably

KINDS = (TRAIN_JOB, JOB)
DEAD_AFTER_S = 180.0  # past its grace time a pod whose end no kubelet has confirmed is taken for ended


class KubernetesBackend(Restarting):
    """See the module. What is not given comes from `COUNTERFLOW_KUBE_…`; `docs/backends.md` has the list."""

    name = "kubernetes"

    def __init__(self, place: Place | None = None, client: Any = None, dead_after_s: float = DEAD_AFTER_S) -> None:
        self.place = place or place_from(os.environ)
        self._may_lack = () if self.place.runtime else (TRAIN_JOB,)  # and still hold some, of when a runtime was named
        self._dead_after_s = dead_after_s
        self._api = KubernetesApi(self.place.namespace, os.environ.get("COUNTERFLOW_KUBE_CONTEXT", ""), client)

    def launch(self, spec: LaunchSpec) -> Handle:
        """The name of the object is made from the claim: of many callers the API server lets one create it."""
        if spec.spot == "only" and not (self.place.spot_labels or self.place.spot_tolerations):
            raise BackendError("no spot nodes are described (COUNTERFLOW_KUBE_SPOT_LABELS)", permanent=True)
        try:
            with claim_locked(spec):
                job = self._found(object_name(spec.claim)) or self._created(spec)
        except OSError as error:
            raise BackendError(f"cannot launch in {spec.run_dir}: {error}") from error
        if (job["metadata"].get("annotations") or {}).get(CLAIM) != spec.claim:
            raise BackendError(f"job {job['metadata']['name']} exists and is not this launch's", permanent=True)
        handle = self._handle(job)
        if handle["kind"] == JOB:  # Kubeflow makes one of its own
            self._api.create_service(service_object(spec, self.place, str(job["metadata"].get("uid", ""))))
        return handle

    def _found(self, name: str) -> dict[str, Any] | None:
        """What an earlier call made, with a runtime or without."""
        found = (self._api.read(kind, name, needed=kind not in self._may_lack) for kind in KINDS)
        return next(filter(None, found), None)

    def _created(self, spec: LaunchSpec) -> dict[str, Any]:
        self._check_runtime()
        command = [self.place.python if word == sys.executable else word for word in spec.command]
        folder = launch_folder(dataclasses.replace(spec, command=command))
        _old_marker_aside(Path(spec.run_dir))
        body = (trainjob_object if self.place.runtime else job_object)(spec, self.place, str(folder))
        job = self._api.create(body) or self._found(object_name(spec.claim))
        if job is None:
            raise BackendError(f"the job of claim {spec.claim} was deleted while it was created")
        return job

    def _check_runtime(self) -> None:
        """`BackendError` where launches cannot be made from the runtime that the operator names."""
        if not self.place.runtime:
            return
        kind, name = self.place.runtime_kind, self.place.runtime
        runtime = self._api.runtime(kind, name)
        why = "there is none" if runtime is None else unfit(runtime)
        if why:
            said = f"{kind} {name} (COUNTERFLOW_KUBE_RUNTIME) cannot be used: {why}; see docs/backends.md"
            raise BackendError(said, permanent=True)

    def _handle(self, job: dict[str, Any]) -> Handle:
        meta = job["metadata"]
        return {
            "backend": self.name,
            "kind": str(job.get("kind") or JOB),
            "claim": meta["annotations"][CLAIM],
            "id": f"{self.place.namespace}/{meta['name']}",
            "name": meta["name"],
            "folder": meta["annotations"][FOLDER],
            "tags": json.loads(meta["annotations"][TAGS]),
            "num_workers": int(meta["annotations"][WORKERS]),
        }

    def poll(self, handle: Handle) -> Observation:
        folder, num_workers = Path(handle["folder"]), int(handle["num_workers"])
        job = self._api.read(_kind(handle), handle["name"])
        if job is None:
            return conclude(folder, num_workers, said=f"Kubernetes no longer has job {handle['name']}")
        pods = self._pods(handle)
        dead = states.unanswered(pods, time.time() - self._dead_after_s)
        for pod in dead:  # its rank may still run, cut off from us: its attempt's token is worth nothing by then
            self._api.delete_pod(pod["metadata"]["name"], 0)
        if len(states.living(pods)) > len(dead):
            return self._alive(folder, num_workers, job, pods, dead)
        if states.finished(job) or dead:
            return self._ended(folder, num_workers, job, pods, self._dead_words(dead))
        if job["metadata"].get("deletionTimestamp"):
            return Observation("running", observe(folder, num_workers, alive=False), detail="it is being deleted")
        if states.suspended(job) and any((folder / "ranks").glob("*.started")):
            return Observation("lost", detail=f"job {handle['name']} was evicted: it is suspended again")
        return Observation("starting", detail=states.why_waiting(job, pods))

    def _pods(self, handle: Handle) -> list[dict[str, Any]]:
        return self._api.pods(job_of(handle["name"]) if _kind(handle) == TRAIN_JOB else handle["name"])

    @staticmethod
    def _alive(
        folder: Path, num_workers: int, job: dict[str, Any], pods: list[dict[str, Any]], dead: Sequence[Any]
    ) -> Observation:
        lost = {states.rank_of(pod) for pod in dead}
        workers = [
            dataclasses.replace(worker, alive=worker.alive and worker.rank not in lost)
            for worker in observe(folder, num_workers, alive=True)
        ]
        if not any(worker.alive or worker.exit_code is not None for worker in workers):
            return Observation("starting", workers, detail=states.why_waiting(job, pods))
        return Observation("running", workers, result=result_of(folder), detail=states.taken_away(pods))

    @staticmethod
    def _ended(
        folder: Path, num_workers: int, job: dict[str, Any], pods: list[dict[str, Any]], dead: str
    ) -> Observation:
        ends = states.rank_ends(pods)
        said = dead or states.taken_away(pods) or states.why_failed(job) or f"job {job['metadata']['name']} is over"
        seen = conclude(folder, num_workers, said=said, known={rank: code for rank, (code, _) in ends.items()})
        ours = job["metadata"].get("deletionTimestamp")
        seen = dataclasses.replace(seen, taken=states.taken_away(pods) or ("" if ours else dead))
        starved = [rank for rank, (_, reason) in ends.items() if reason == "OOMKilled"]
        if starved and not seen.result:
            detail = f"rank {starved[0]} was ended by the kernel: out of memory (OOMKilled)"
            return dataclasses.replace(seen, failure_class="out_of_memory", detail=detail)
        return seen

    def _dead_words(self, dead: Sequence[Any]) -> str:
        if not dead:
            return ""
        names = ", ".join(pod["metadata"]["name"] for pod in dead)
        return f"{names}: no kubelet has confirmed the end within {self._dead_after_s:g} s; the node is taken for dead"

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Pods get SIGTERM and, after `grace_s` or their own grace time if that is shorter, SIGKILL."""
        pods = states.living(self._pods(handle))
        job = self._api.read(_kind(handle), handle["name"])
        if job is None or (states.finished(job) and not pods):
            return
        folder = Path(handle["folder"])
        if folder.is_dir():
            body = {"grace_s": grace_s, "asked_at": time.time()}
            write_durably(folder / "stop.json", json.dumps(body).encode())
        self._api.delete(_kind(handle), handle["name"])
        for pod in pods:
            self._api.delete_pod(pod["metadata"]["name"], math.ceil(grace_s) + MARGIN_S)

    def quotes(self, offers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """A cluster has no prices and does not say what is free: the offer's own words count."""
        return [{"price_usd_per_hour": 0.0, "availability": 1} | offer for offer in offers]

    def list(self, tag: str = "") -> list[Handle]:
        key, _, value = tag.partition("=")
        found = [job for kind in KINDS for job in self._api.all_of(kind, needed=kind not in self._may_lack)]
        for job in found:  # nothing else ends a TrainJob's life; a Job has its own time
            if job.get("kind") == TRAIN_JOB and states.finished_before(job, time.time() - KEPT_S):
                self._api.delete(TRAIN_JOB, job["metadata"]["name"])
        handles = [self._handle(job) for job in found if not states.finished(job)]
        return [handle for handle in handles if not tag or handle["tags"].get(key) == value]


def _kind(handle: Handle) -> str:
    return str(handle.get("kind") or JOB)


def _old_marker_aside(run_dir: Path) -> None:
    """A completion marker of an earlier launch in the same run directory must not be taken for ours."""
    marker = run_dir / "result.json"
    if marker.exists():
        marker.replace(run_dir / "result-before.json")
