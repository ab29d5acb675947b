"""One launch as a TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1, as of 2.3), which makes its pods from a runtime
that the cluster's operators keep: TrainJob -> JobSet -> one Indexed Job called `NAME-node-0` -> pods.

What runs in the pods and where is ours; whether a failed pod is started again is the runtime's, so a runtime that does is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer_client.backends.base import LaunchSpec
from trainer_client.backends.kubernetes_objects import MANAGED_BY, MANAGER, metadata, pod_spec
from trainer_client.backends.kubernetes_place import Place

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
TRAIN_JOB = "TrainJob"
NODE = "node"  # what Kubeflow calls the replicated job, and its container, that trains
PATCH_OWNER = "counterflow.dev/launch"
# The fields of our pods that a TrainJob may set; the others are the runtime's.
_PATCHED = (
    "serviceAccountName",
    "volumes",
    "securityContext",
    "nodeSelector",
    "affinity",
    "tolerations",
    "terminationGracePeriodSeconds",
)


def job_of(train_job: str) -> str:
    """The name of the Job whose pods are the ranks."""
    return f"{train_job}-{NODE}-0"


def trainjob_object(spec: LaunchSpec, place: Place, folder: str) -> dict[str, Any]:
    """One node a rank, with the pods of `job_object` as far as a TrainJob may shape them."""
    container = pod_spec(spec, place, folder)["containers"][0]
    trainer = {
        "image": container["image"],
        "command": container["command"],
        "env": [entry for entry in container["env"] if not entry["name"].startswith("MASTER_")],  # the runtime's PET_…
        "numNodes": spec.num_workers,
        "numProcPerNode": 1,
    }
    if "resources" in container:
        trainer["resourcesPerNode"] = container["resources"]
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": TRAIN_JOB,
        "metadata": metadata(spec, place, folder),
        "spec": {
            "runtimeRef": {"apiGroup": GROUP, "kind": place.runtime_kind, "name": place.runtime},
            "trainer": trainer,
            "suspend": bool(place.queue),  # Kueue admits it
            "runtimePatches": [{"manager": PATCH_OWNER, "trainingRuntimeSpec": _patch(spec, place, folder)}],
        },
    }


def _patch(spec: LaunchSpec, place: Place, folder: str) -> dict[str, Any]:
    ours = pod_spec(spec, place, folder)
    patched = {key: ours[key] for key in _PATCHED if key in ours}
    if mounts := ours["containers"][0].get("volumeMounts"):
        patched["containers"] = [{"name": NODE, "volumeMounts": mounts}]
    pods = {"metadata": {"labels": {MANAGED_BY: MANAGER}}, "spec": patched}
    return {"template": {"spec": {"replicatedJobs": [{"name": NODE, "template": {"spec": {"template": pods}}}]}}}


def unfit(runtime: Mapping[str, Any]) -> str:
    """Why launches cannot be made from a (Cluster)TrainingRuntime, or an empty text.

    Kubeflow's own `torch-distributed` starts failed pods again, six times and more; the ranks of an attempt run once.
    """
    spec = runtime.get("spec") or {}
    job_set = _at(spec, "template", "spec")
    jobs: list[dict[str, Any]] = job_set.get("replicatedJobs") or []
    job = next((job for job in jobs if job.get("name") == NODE), {})
    pods = _at(job, "template", "spec", "template", "spec")
    if "torch" not in (spec.get("mlPolicy") or {}):
        return "it has no torch policy, by which ranks find rank 0"
    if NODE not in [container.get("name") for container in pods.get("containers") or []]:
        return f"it has no replicated job {NODE} with a container {NODE}"
    once = pods.get("restartPolicy") == "Never" and _at(job, "template", "spec").get("backoffLimit") == 0
    if not once or _at(job_set, "failurePolicy").get("maxRestarts"):
        return "it starts failed pods again; it needs restartPolicy Never, backoffLimit 0 and no maxRestarts"
    return ""


def _at(thing: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    for key in path:
        thing = thing.get(key) or {}
    return thing
