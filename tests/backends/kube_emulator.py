"""A stand-in for a Kubernetes cluster: kmock's API server in memory, and in place of controllers and kubelets a thread that
really runs what pods order, as processes of this machine, and tells their states as kubelets do.

What it does not do: validate, schedule, resolve names, mount volumes, pull images. A test of objects against the client's own
models is apart (`test_kubernetes.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import kmock
import kubernetes

from tests.services import wait_until

JOBS, PODS = "batch/v1/jobs", "v1/pods"
TRAIN_JOBS, RUNTIMES = (
    "trainer.kubeflow.org/v1alpha1/trainjobs",
    "trainer.kubeflow.org/v1alpha1/clustertrainingruntimes",
)


class KubeServer:
    """kmock's emulator on a loopback port, in a thread of its own."""

    def __init__(self) -> None:
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),), daemon=True)

    def start(self) -> None:
        self._thread.start()
        wait_until(lambda: self.url, within_s=30, what="kmock listens")

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(30)

    def client(self) -> kubernetes.client.ApiClient:
        configuration = kubernetes.client.Configuration()
        configuration.host = self.url
        configuration.retries = False
        return kubernetes.client.ApiClient(configuration)

    async def _serve(self) -> None:
        async with kmock.KubernetesEmulator() as emulator, kmock.Server(emulator) as server:
            for resource in (JOBS, PODS, "v1/services", TRAIN_JOBS, RUNTIMES):
                emulator.resources[resource] = {}
            self.url = str(server.url).rstrip("/")
            await self._over.wait()


@dataclass
class Pod:
    """A process in the place of a pod's container."""

    name: str
    job: str
    index: int
    container: str
    process: subprocess.Popen[bytes]
    kill_at: float = field(default=float("inf"))
    told: bool = False


class Kubelet:
    """Job controller, garbage collector and kubelets in one loop over the API."""

    def __init__(self, server: KubeServer, namespace: str) -> None:
        self._batch = kubernetes.client.BatchV1Api(server.client())
        self._core = kubernetes.client.CoreV1Api(server.client())
        self.namespace = namespace
        self.pods: dict[str, Pod] = {}
        self._started: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)
        for pod in self.pods.values():
            pod.process.kill()
            pod.process.wait()

    def _run(self) -> None:
        while not self._over.wait(0.2):
            jobs = {job["metadata"]["name"]: job for job in items(self._batch.list_namespaced_job, self.namespace)}
            for name, job in jobs.items():
                self._admit(name, job)
            if not self.pods:
                continue
            there = {pod["metadata"]["name"]: pod for pod in items(self._core.list_namespaced_pod, self.namespace)}
            for pod in list(self.pods.values()):
                self._look(pod, jobs.get(pod.job), there.get(pod.name))
            for name, job in jobs.items():
                self._conclude(name, job)

    def _admit(self, name: str, job: dict[str, Any]) -> None:
        if name in self._started or job["spec"]["suspend"]:
            return
        self._started.add(name)
        held = {"metadata": {"finalizers": ["foregroundDeletion"]}}
        self._batch.patch_namespaced_job(name, self.namespace, held, _preload_content=False)
        for index in range(job["spec"]["completions"]):
            self._start(name, job, index)

    def _start(self, name: str, job: dict[str, Any], index: int) -> None:
        """One container: its command and its own environment, nothing of the server's."""
        container = job["spec"]["template"]["spec"]["containers"][0]
        environment = {entry["name"]: _value(entry, index) for entry in container["env"]}
        process = subprocess.Popen(
            container["command"],
            env={"PATH": os.environ["PATH"], "JOB_COMPLETION_INDEX": str(index)} | environment,
            stdout=subprocess.DEVNULL,
            cwd=os.getcwd(),
        )
        pod = Pod(f"{name}-{index}-x", name, index, container["name"], process)
        meta = {
            "name": pod.name,
            "namespace": self.namespace,
            "finalizers": ["batch.kubernetes.io/job-tracking"],
            "labels": job["spec"]["template"]["metadata"]["labels"] | {"batch.kubernetes.io/job-name": name},
            "annotations": {"batch.kubernetes.io/job-completion-index": str(index)},
        }
        self._core.create_namespaced_pod(
            self.namespace,
            {"metadata": meta, "status": _pod_status(container["name"], "Running", {"running": {}})},
            _preload_content=False,
        )
        self.pods[pod.name] = pod

    def _look(self, pod: Pod, job: dict[str, Any] | None, body: dict[str, Any] | None) -> None:
        """SIGTERM for what is being deleted, SIGKILL after the grace time, and the end as a status."""
        if pod.told:
            return
        going = body is None or body["metadata"].get("deletionTimestamp")
        failed = any(p.told and p.process.returncode for p in self.pods.values() if p.job == pod.job)
        if (going or failed or (job or {}).get("metadata", {}).get("deletionTimestamp")) and pod.kill_at == float(
            "inf"
        ):
            pod.kill_at = time.monotonic() + 30
            pod.process.terminate()
        if time.monotonic() > pod.kill_at:
            pod.process.kill()
        code = pod.process.poll()
        if code is not None:
            pod.told = True
            ended = {
                "terminated": {
                    "exitCode": code if code >= 0 else 128 - code,
                    "reason": "Error" if code else "Completed",
                }
            }
            status = {"status": _pod_status(pod.container, "Failed" if code else "Succeeded", ended)}
            with contextlib.suppress(kubernetes.client.ApiException):
                self._core.patch_namespaced_pod(
                    pod.name, self.namespace, {"metadata": {"finalizers": []}} | status, _preload_content=False
                )

    def _conclude(self, name: str, job: dict[str, Any]) -> None:
        mine = [pod for pod in self.pods.values() if pod.job == name]
        if not mine or not all(pod.told for pod in mine):
            return
        if job["metadata"].get("deletionTimestamp"):
            change: dict[str, Any] = {"metadata": {"finalizers": []}}
        elif (job.get("status") or {}).get("conditions"):
            return
        else:
            kind = "Failed" if any(pod.process.returncode for pod in mine) else "Complete"
            change = {"status": {"conditions": [{"type": kind, "status": "True", "reason": "BackoffLimitExceeded"}]}}
        with contextlib.suppress(kubernetes.client.ApiException):
            self._batch.patch_namespaced_job(name, self.namespace, change, _preload_content=False)


def items(listing: Any, namespace: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(listing(namespace, _preload_content=False).data)["items"]
    return found


def _value(entry: dict[str, Any], index: int) -> str:
    """Of one variable. The only field of a pod that is asked for is its index."""
    if "value" in entry:
        return str(entry["value"])
    assert "job-completion-index" in entry["valueFrom"]["fieldRef"]["fieldPath"]
    return str(index)


def _pod_status(name: str, phase: str, state: dict[str, Any]) -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [{"name": name, "state": state}]}
