"""A stand-in for Kubeflow Trainer with the JobSet controller below it: a thread that makes of each TrainJob and its runtime the one
Job that they would make, keeps it suspended, running or deleted as the TrainJob is, and tells its end as theirs.

What it does not do: the JobSet between the two, webhooks, initializers, runtimes other than torch's. The Job is run by the
`Kubelet`.
"""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import threading
from pathlib import Path
from typing import Any

import kubernetes
import yaml

from tests.backends.kube_emulator import KubeServer, items
from trainer_client.backends.kubernetes_states import finished, why_failed
from trainer_client.backends.kubernetes_trainjobs import GROUP, NODE, VERSION, job_of

RUNTIME_FILE = Path(__file__).parents[2] / "docs" / "examples" / "kubeflow_runtime.yaml"
KIND = {"group": GROUP, "version": VERSION}
INDEX_FIELD = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def example_runtime() -> dict[str, Any]:
    """The one that the documentation shows."""
    runtime: dict[str, Any] = yaml.safe_load(RUNTIME_FILE.read_text())
    return runtime


class TrainJobController:
    """Starts with `runtime` in the cluster, where one is given."""

    def __init__(self, server: KubeServer, namespace: str, runtime: dict[str, Any] | None = None) -> None:
        self._custom = kubernetes.client.CustomObjectsApi(server.client())
        self._batch = kubernetes.client.BatchV1Api(server.client())
        self._where = KIND | {"namespace": namespace, "plural": "trainjobs"}
        self._namespace = namespace
        self._runtime = runtime or example_runtime()
        self._held: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._custom.create_cluster_custom_object(**KIND, plural="clustertrainingruntimes", body=self._runtime)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._over.wait(0.2):
            train_jobs = self._custom.list_namespaced_custom_object(**self._where)["items"]
            if not train_jobs:
                continue
            jobs = {job["metadata"]["name"]: job for job in items(self._batch.list_namespaced_job, self._namespace)}
            for train_job in train_jobs:
                with contextlib.suppress(kubernetes.client.ApiException):  # it changed; the next look sees it
                    self._reconcile(train_job, jobs.get(job_of(train_job["metadata"]["name"])))

    def _reconcile(self, train_job: dict[str, Any], job: dict[str, Any] | None) -> None:
        name, spec = train_job["metadata"]["name"], train_job["spec"]
        if train_job["metadata"].get("deletionTimestamp"):
            if job is None:
                self._change(name, {"metadata": {"finalizers": []}})
            elif not job["metadata"].get("deletionTimestamp"):
                self._batch.delete_namespaced_job(
                    job_of(name), self._namespace, propagation_policy="Foreground", _preload_content=False
                )
        elif name not in self._held:
            self._held.add(name)
            self._change(name, {"metadata": {"finalizers": ["foregroundDeletion"]}})
        elif job is None:
            body = child_job(train_job, self._runtime)
            self._batch.create_namespaced_job(self._namespace, body, _preload_content=False)
        elif job["spec"]["suspend"] != spec["suspend"]:
            self._batch.patch_namespaced_job(
                job_of(name), self._namespace, {"spec": {"suspend": spec["suspend"]}}, _preload_content=False
            )
        elif not finished(train_job) and (finished(job) or "status" not in train_job):
            self._change(name, {"status": _status(job)})

    def _change(self, name: str, body: dict[str, Any]) -> None:
        self._custom.patch_namespaced_custom_object(**self._where, name=name, body=body)


def child_job(train_job: dict[str, Any], runtime: dict[str, Any]) -> dict[str, Any]:
    """The Job of the replicated job `node`: the runtime's, with what the TrainJob says of its trainer, its patches, and the torch
    policy's variables."""
    name, trainer = train_job["metadata"]["name"], train_job["spec"]["trainer"]
    template = copy.deepcopy(_node(runtime["spec"]))["template"]
    pods = template["spec"].setdefault("template", {})
    container = next(one for one in pods["spec"]["containers"] if one["name"] == NODE)
    container |= {"image": trainer["image"], "command": trainer["command"]}
    container |= {"resources": trainer["resourcesPerNode"]} if "resourcesPerNode" in trainer else {}
    container["env"] = [*container.get("env", []), *trainer["env"], *_torch_variables(name, trainer)]
    labels = {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/replicatedjob-name": NODE}
    pods.setdefault("metadata", {}).setdefault("labels", {}).update(labels)
    for patch in train_job["spec"]["runtimePatches"]:
        wanted = _node(patch["trainingRuntimeSpec"])["template"]["spec"]["template"]
        pods["metadata"]["labels"] |= wanted.get("metadata", {}).get("labels", {})
        pods["spec"] |= {key: value for key, value in wanted["spec"].items() if key != "containers"}
        for one in wanted["spec"].get("containers", []):
            next(mine for mine in pods["spec"]["containers"] if mine["name"] == one["name"]).update(one)
    counts = {"completions": trainer["numNodes"], "parallelism": trainer["numNodes"], "completionMode": "Indexed"}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_of(name), "labels": labels},
        "spec": template["spec"] | counts | {"suspend": train_job["spec"]["suspend"]},
    }


def _torch_variables(name: str, trainer: dict[str, Any]) -> list[dict[str, Any]]:
    said = {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_MASTER_ADDR": f"{name}-{NODE}-0-0.{name}",
        "PET_MASTER_PORT": "29500",
    }
    rank = {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": INDEX_FIELD}}}
    return [*({"name": key, "value": value} for key, value in said.items()), rank]


def _node(spec: dict[str, Any]) -> dict[str, Any]:
    replicated = spec["template"]["spec"]["replicatedJobs"]
    found: dict[str, Any] = next(job for job in replicated if job["name"] == NODE)
    return found


def _status(job: dict[str, Any]) -> dict[str, Any]:
    counts = {"ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0}
    if not finished(job):
        return {"jobsStatus": [{"name": NODE} | counts | {"active": 1}]}
    failed = bool(why_failed(job))
    end = {"type": "Failed" if failed else "Complete", "reason": "FailedJobs" if failed else "AllJobsCompleted"}
    end |= {"status": "True", "message": "", "lastTransitionTime": dt.datetime.now(dt.UTC).isoformat()}
    return {"conditions": [end], "jobsStatus": [{"name": NODE} | counts | {"failed" if failed else "succeeded": 1}]}
