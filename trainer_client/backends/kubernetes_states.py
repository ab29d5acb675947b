"""What a Job or TrainJob and its pods say: whether the launch waits, runs or is over, and why. Pure; objects as the API serves
them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from typing import Any

from trainer_client.backends.kubernetes_objects import CONTAINER, QUEUE
from trainer_client.backends.kubernetes_trainjobs import NODE, TRAIN_JOB

INDEX = "batch.kubernetes.io/job-completion-index"
ENDED_PHASES = ("Succeeded", "Failed")


def finished(job: Mapping[str, Any]) -> bool:
    """Its controller says that it is complete or has failed."""
    return any(_held(job, kind) for kind in ("Complete", "Failed"))


def finished_before(job: Mapping[str, Any], before_s: float) -> bool:
    """It was over by `before_s` (unix seconds)."""
    ends = [c["lastTransitionTime"] for kind in ("Complete", "Failed") if (c := _held(job, kind))]
    return any(dt.datetime.fromisoformat(end).timestamp() < before_s for end in ends)


def living(pods: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Pods that have, or may get, a process."""
    return [pod for pod in pods if _status(pod).get("phase") not in ENDED_PHASES]


def unanswered(pods: Iterable[Mapping[str, Any]], before_s: float) -> list[Mapping[str, Any]]:
    """Living pods that were to have ended by `before_s` (unix seconds): no kubelet confirms their end, their node is dead."""
    found = []
    for pod in living(pods):
        by = pod["metadata"].get("deletionTimestamp")  # when its grace time is over
        if by and dt.datetime.fromisoformat(by).timestamp() < before_s:
            found.append(pod)
    return found


def rank_of(pod: Mapping[str, Any]) -> int:
    """The rank that the pod runs; -1 for one that is none of an Indexed Job."""
    return int((pod["metadata"].get("annotations") or {}).get(INDEX, -1))


def suspended(job: Mapping[str, Any]) -> bool:
    return bool((job.get("spec") or {}).get("suspend"))


def why_waiting(job: Mapping[str, Any], pods: Iterable[Mapping[str, Any]]) -> str:
    """In words: for quota, for a node, for an image."""
    name = job["metadata"]["name"]
    if suspended(job):
        queue = (job["metadata"].get("labels") or {}).get(QUEUE, "")
        return f"job {name} waits for its admission" + (f" by Kueue (queue {queue})" if queue else "")
    for pod in pods:
        for condition in _status(pod).get("conditions") or []:
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return f"job {name} waits for nodes: {condition.get('message') or condition.get('reason')}"
        waiting = ((_container(pod).get("state") or {}).get("waiting")) or {}
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"job {name} cannot start its containers: {waiting['reason']} {waiting.get('message') or ''}".strip()
    if job.get("kind") == TRAIN_JOB and not _status(job).get("jobsStatus"):
        return f"job {name} waits for Kubeflow Trainer to make its pods"
    return f"job {name} starts"


def rank_ends(pods: Iterable[Mapping[str, Any]]) -> dict[int, tuple[int, str]]:
    """Rank -> (exit code, negative for a signal; the kubelet's reason), for containers that have ended."""
    ends = {}
    for pod in pods:
        index = (pod["metadata"].get("annotations") or {}).get(INDEX)
        ended = (_container(pod).get("state") or {}).get("terminated")
        if index is None or not ended:
            continue
        code = int(ended.get("exitCode", 0))
        ends[int(index)] = (128 - code if 128 < code <= 192 else code, str(ended.get("reason") or ""))
    return ends


def taken_away(pods: Iterable[Mapping[str, Any]]) -> str:
    """Why the cluster ended pods of its own will (preempted, drained, evicted), or an empty text."""
    for pod in pods:
        for condition in _status(pod).get("conditions") or []:
            if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
                return f"{pod['metadata']['name']}: {condition.get('reason')}: {condition.get('message') or ''}".strip(
                    ": "
                )
    return ""


def why_failed(job: Mapping[str, Any]) -> str:
    failed = _held(job, "Failed")
    return f"{failed.get('reason')}: {failed.get('message') or ''}".strip(": ") if failed else ""


def _held(job: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """The condition, where it holds."""
    conditions = _status(job).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind and c.get("status") == "True"), None)


def _status(thing: Mapping[str, Any]) -> Mapping[str, Any]:
    return thing.get("status") or {}


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    statuses = _status(pod).get("containerStatuses") or []
    return next((status for status in statuses if status.get("name") in (CONTAINER, NODE)), {})
