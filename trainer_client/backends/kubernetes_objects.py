"""The Kubernetes objects of one launch as plain dictionaries: an Indexed Job, and a headless Service that names its pods.

`kubernetes_trainjobs` has what stands in their place where Kubeflow Trainer is used.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from typing import Any

from trainer_client.backends.base import LaunchSpec
from trainer_client.backends.kubernetes_place import Place

JOB = "Job"
MANAGER = "counterflow"
MANAGED_BY = "app.kubernetes.io/managed-by"
CLAIM = "counterflow.dev/claim"  # an annotation: a label would not hold every claim
TAGS = "counterflow.dev/tags"
FOLDER = "counterflow.dev/folder"
WORKERS = "counterflow.dev/workers"
JOB_NAME = "batch.kubernetes.io/job-name"
QUEUE = "kueue.x-k8s.io/queue-name"
CONTAINER = "rank"
MASTER_PORT = 29500
MARGIN_S = 5  # between the keeper's kill of its rank and the kubelet's kill of the keeper
KEPT_S = 86_400  # ended Jobs stay that long for whoever looks
# Leaves room for "-node-0-4095-abcde" in the name of a TrainJob's pod.
_LABEL = re.compile(r"^[a-z]([a-z0-9-]{0,43}[a-z0-9])?$")


def object_name(claim: str) -> str:
    """A DNS label that is the same for every call with the claim."""
    plain = f"cf-{claim.lower()}"
    if _LABEL.match(plain) and claim == claim.lower():
        return plain
    return f"cf-{hashlib.sha256(claim.encode()).hexdigest()[:40]}"


def job_object(spec: LaunchSpec, place: Place, folder: str) -> dict[str, Any]:
    """One pod a rank. A pod that fails ends the Job: what comes after is a new attempt's, never a new pod of this one."""
    return {
        "apiVersion": "batch/v1",
        "kind": JOB,
        "metadata": metadata(spec, place, folder),
        "spec": {
            "completionMode": "Indexed",
            "completions": spec.num_workers,
            "parallelism": spec.num_workers,
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": KEPT_S,
            "suspend": bool(place.queue),  # Kueue admits it
            "template": {"metadata": {"labels": {MANAGED_BY: MANAGER}}, "spec": pod_spec(spec, place, folder)},
        },
    }


def metadata(spec: LaunchSpec, place: Place, folder: str) -> dict[str, Any]:
    """What every launch is found by, and its handle made from."""
    tags = {str(k): str(v) for k, v in spec.tags.items()} | {"job": spec.job, "attempt": spec.attempt}
    return {
        "name": object_name(spec.claim),
        "namespace": place.namespace,
        "labels": {MANAGED_BY: MANAGER} | ({QUEUE: place.queue} if place.queue else {}),
        "annotations": {CLAIM: spec.claim, TAGS: json.dumps(tags), FOLDER: folder, WORKERS: str(spec.num_workers)},
    }


def service_object(spec: LaunchSpec, place: Place, owner_uid: str) -> dict[str, Any]:
    """Names for the pods; it goes with its Job. Ranks are found before they are ready: they get ready together."""
    name = object_name(spec.claim)
    owner = {"apiVersion": "batch/v1", "kind": JOB, "name": name, "uid": owner_uid}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": name,
            "namespace": place.namespace,
            "labels": {MANAGED_BY: MANAGER},
            "ownerReferences": [owner],
        },
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_NAME: name},
            "ports": [{"name": "rendezvous", "port": MASTER_PORT}],
        },
    }


def pod_spec(spec: LaunchSpec, place: Place, folder: str) -> dict[str, Any]:
    name = object_name(spec.claim)
    body: dict[str, Any] = {
        "restartPolicy": "Never",
        "subdomain": name,
        "terminationGracePeriodSeconds": math.ceil(spec.grace_s) + MARGIN_S,
        "enableServiceLinks": False,
        "containers": [_container(spec, place, folder)],
    }
    if place.volume_claim:
        body["volumes"] = [{"name": "shared", "persistentVolumeClaim": {"claimName": place.volume_claim}}]
    if place.priority_class:
        body["priorityClassName"] = place.priority_class
    if place.service_account:
        body["serviceAccountName"] = place.service_account
    else:
        body["automountServiceAccountToken"] = False
    if place.user_id is not None:
        body["securityContext"] = {"runAsUser": place.user_id}
    return body | _nodes(spec.spot, place)


def _container(spec: LaunchSpec, place: Place, folder: str) -> dict[str, Any]:
    name = object_name(spec.claim)
    variables = {
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(MASTER_PORT),
        "COUNTERFLOW_FORWARD_TERM": "1",
    }
    body: dict[str, Any] = {
        "name": CONTAINER,
        "image": place.image,
        "command": [place.python, "-m", "trainer_client.backends.rank_keeper", folder],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    asked = {"cpu": place.cpu, "memory": place.memory}
    gpus = {"nvidia.com/gpu": str(place.gpus_per_worker)} if place.gpus_per_worker else {}
    requests = {key: value for key, value in asked.items() if value} | gpus
    if requests:
        body["resources"] = {"requests": requests, "limits": gpus} if gpus else {"requests": requests}
    if place.volume_claim:
        body["volumeMounts"] = [{"name": "shared", "mountPath": place.volume_path}]
    return body


def _nodes(spot: str, place: Place) -> dict[str, Any]:
    """Which nodes: those that can be taken back alone, rather, or never."""
    labels, tolerations = place.spot_labels, [dict(one) for one in place.spot_tolerations]
    if spot == "only":
        return {"nodeSelector": labels, "tolerations": tolerations}
    if not labels:
        return {"tolerations": tolerations} if spot == "prefer" and tolerations else {}
    if spot == "prefer":
        wanted = [{"key": key, "operator": "In", "values": [value]} for key, value in labels.items()]
        preferred = [{"weight": 100, "preference": {"matchExpressions": wanted}}]
        affinity = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
        return {"affinity": {"nodeAffinity": affinity}, "tolerations": tolerations}
    others = [{"key": key, "operator": "NotIn", "values": [value]} for key, value in labels.items()]
    required = {"nodeSelectorTerms": [{"matchExpressions": others}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}
