"""Where launches go in a Kubernetes cluster, as the operator describes it in `COUNTERFLOW_KUBE_…`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer_client.backends.base import BackendError

CLUSTER_RUNTIME, RUNTIME = "ClusterTrainingRuntime", "TrainingRuntime"


@dataclass(frozen=True, slots=True)
class Place:
    """Where launches go, the same for all of them. `spot_labels` mark nodes that can be taken back, `spot_tolerations` let pods
    onto them. With a `runtime`, the name of one of Kubeflow Trainer, launches are TrainJobs; without, Jobs."""

    image: str
    namespace: str = "default"
    python: str = "python"
    volume_claim: str = ""
    volume_path: str = ""
    gpus_per_worker: int = 0
    cpu: str = ""
    memory: str = ""
    queue: str = ""
    priority_class: str = ""
    service_account: str = ""
    user_id: int | None = None
    spot_labels: dict[str, str] = field(default_factory=dict)
    spot_tolerations: tuple[dict[str, str], ...] = ()
    runtime: str = ""
    runtime_kind: str = CLUSTER_RUNTIME


def place_from(said: Any) -> Place:
    """The place that the environment describes. `BackendError` naming what is missing."""

    def get(name: str, default: str = "") -> str:
        return str(said.get(f"COUNTERFLOW_KUBE_{name}", default))

    for name in ("IMAGE", "VOLUME_CLAIM"):
        if not get(name):
            raise BackendError(f"COUNTERFLOW_KUBE_{name} is not set; see docs/backends.md", permanent=True)
    user = get("USER_ID")
    runtime_kind, runtime = _runtime(get("RUNTIME"), get("PRIORITY_CLASS"))
    return Place(
        image=get("IMAGE"),
        namespace=get("NAMESPACE", "default"),
        python=get("PYTHON", "python"),
        volume_claim=get("VOLUME_CLAIM"),
        volume_path=get("VOLUME_PATH") or str(Path(said.get("COUNTERFLOW_VAR_DIR", "var")).resolve()),
        gpus_per_worker=int(get("GPUS_PER_WORKER", "0")),
        cpu=get("CPU"),
        memory=get("MEMORY"),
        queue=get("QUEUE"),
        priority_class=get("PRIORITY_CLASS"),
        service_account=get("SERVICE_ACCOUNT"),
        user_id=int(user) if user else (os.getuid() or None),
        spot_labels=dict(pair.split("=", 1) for pair in get("SPOT_LABELS").split(",") if "=" in pair),
        spot_tolerations=tuple(_toleration(text) for text in get("SPOT_TOLERATIONS").split(",") if text),
        runtime=runtime,
        runtime_kind=runtime_kind,
    )


def _runtime(text: str, priority_class: str) -> tuple[str, str]:
    """(kind, name) of `NAME` or `TrainingRuntime/NAME`."""
    kind, _, name = text.rpartition("/")
    if kind not in ("", CLUSTER_RUNTIME, RUNTIME):
        raise BackendError(f"COUNTERFLOW_KUBE_RUNTIME: {kind} is not {CLUSTER_RUNTIME} or {RUNTIME}", permanent=True)
    if name and priority_class:
        said = "COUNTERFLOW_KUBE_PRIORITY_CLASS: the priority class of TrainJobs is set in their runtime"
        raise BackendError(said, permanent=True)
    return kind or CLUSTER_RUNTIME, name


def _toleration(text: str) -> dict[str, str]:
    """`key=value:effect`, as kubectl writes taints; `:effect` may be left out, and `=value`."""
    taint, _, effect = text.partition(":")
    key, has_value, value = taint.partition("=")
    matched = {"operator": "Equal", "value": value} if has_value else {"operator": "Exists"}
    return {"key": key} | matched | ({"effect": effect} if effect else {})
