"""What is Kubernetes' own: objects that the client's models know in full, quotas by Kueue, spot nodes, and states in words."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kubernetes as library
import pytest

from tests.backends.bench import WAIT, Bench
from tests.backends.kube_emulator import Kubelet, KubeServer
from trainer_client.backends import BackendError, LaunchSpec, get_backend
from trainer_client.backends import kubernetes_states as states
from trainer_client.backends.kubernetes_api import KubernetesApi
from trainer_client.backends.kubernetes_objects import job_object, object_name, service_object
from trainer_client.backends.kubernetes_place import Place, place_from

PLAIN = Place(image="registry/trainer:1", volume_claim="runs", volume_path="/srv/runs")
RICH = dataclasses.replace(
    PLAIN, gpus_per_worker=2, cpu="4", memory="16Gi", queue="team-a", priority_class="high", service_account="trainer",
    user_id=1000, spot_labels={"cloud/spot": "true"}, spot_tolerations=({"key": "spot", "operator": "Exists"},),
)  # fmt: skip


def spec_of(spot: str = "never", claim: str = "0123456789abcdef") -> LaunchSpec:
    return LaunchSpec(claim, "j1", "a1", ["python"], {"A": "b"}, 3, "/srv/runs/r", 30.0, {"team": "ü"}, spot)


def round_trip(body: dict[str, Any], model: str) -> Any:
    """Through the client's models and back: what they do not know is lost on the way, what they require is demanded."""
    client = library.client.ApiClient()
    return client.sanitize_for_serialization(client.deserialize(SimpleNamespace(data=json.dumps(body)), model))


@pytest.mark.parametrize("place", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("spot", ["never", "prefer", "only"])
def test_every_field_of_every_object_is_one_that_the_api_knows(place: Place, spot: str) -> None:
    job = job_object(spec_of(spot), place, "/srv/runs/r/launches/c")
    assert round_trip(job, "V1Job") == job
    service = service_object(spec_of(spot), place, "uid-1")
    assert round_trip(service, "V1Service") == service
    wrong = {**job, "spec": {**job["spec"], "completionmode": "Indexed"}}
    assert round_trip(wrong, "V1Job") != wrong, "this check sees a field that does not exist"


def test_ranks_find_rank_0_by_a_name_that_dns_takes() -> None:
    """The host name of a pod is JOB-INDEX, at most 63 characters; a claim may have 128 of any case."""
    names = [object_name(claim) for claim in ("0123abcd" * 4, "A" * 128, "a" * 128, "x.y_z", "Ab", "ab")]
    assert len(set(names)) == len(names)
    assert all(len(f"{name}-4095") <= 63 and name.replace("-", "").isalnum() and name.islower() for name in names)
    job = job_object(spec_of(), PLAIN, "/f")
    env = {e["name"]: e["value"] for e in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    service = service_object(spec_of(), PLAIN, "u")["metadata"]["name"]
    assert env["MASTER_ADDR"] == f"{job['metadata']['name']}-0.{service}"
    assert job["spec"]["template"]["spec"]["subdomain"] == service


def test_a_failed_pod_is_never_replaced() -> None:
    """Two trainers of one attempt would share a snapshot directory."""
    job = job_object(spec_of(), PLAIN, "/f")["spec"]
    assert (job["backoffLimit"], job["podReplacementPolicy"]) == (0, "Failed")
    assert job["template"]["spec"]["restartPolicy"] == "Never"


def test_spot_nodes_are_chosen_preferred_or_avoided() -> None:
    pods = {
        spot: job_object(spec_of(spot), RICH, "/f")["spec"]["template"]["spec"] for spot in ("never", "prefer", "only")
    }
    assert pods["only"]["nodeSelector"] == {"cloud/spot": "true"}
    assert "preferredDuringSchedulingIgnoredDuringExecution" in pods["prefer"]["affinity"]["nodeAffinity"]
    required = pods["never"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert required["nodeSelectorTerms"][0]["matchExpressions"][0]["operator"] == "NotIn"
    assert ["tolerations" in pods[spot] for spot in ("never", "prefer", "only")] == [False, True, True]


def test_a_job_in_a_queue_waits_for_kueue_and_one_that_is_evicted_is_lost(
    kube_server: KubeServer, kubernetes: Bench
) -> None:
    place = dataclasses.replace(kubernetes.backend.place, queue="team-a")  # type: ignore[attr-defined]
    queued = Bench(get_backend("kubernetes", place=place, client=kube_server.client()), kubernetes.folder)
    handle = queued.launch(WAIT)
    seen = queued.backend.poll(handle)
    assert (seen.state, seen.detail) == ("starting", "job cf-c1 waits for its admission by Kueue (queue team-a)")
    assert queued.backend.list("job=j1") == [handle]
    (queued.folder / "run" / "launches" / "c1" / "ranks" / "rank-0.started").touch()
    assert queued.backend.poll(handle).state == "lost"
    queued.backend.stop(handle, 0.0)
    assert queued.backend.list("job=j1") == []


def test_faults_of_the_server_are_told_from_refusals(kube_server: KubeServer, kubernetes: Bench) -> None:
    backend = kubernetes.backend
    with pytest.raises(BackendError, match="SPOT_LABELS") as refused:
        backend.launch(kubernetes.spec(WAIT, spot="only"))
    assert refused.value.permanent
    client = kube_server.client()
    client.configuration.host = "http://127.0.0.1:9"
    with pytest.raises(BackendError, match="cannot be reached") as away:
        get_backend("kubernetes", place=PLAIN, client=client).list("")
    assert not away.value.permanent
    with pytest.raises(BackendError, match="COUNTERFLOW_KUBE_IMAGE is not set"):
        place_from({})


def test_the_place_is_read_from_the_environment() -> None:
    said = {"IMAGE": "i", "VOLUME_CLAIM": "v", "VOLUME_PATH": "/v", "GPUS_PER_WORKER": "2", "SPOT_LABELS": "a/b=c,d=e"}
    said["SPOT_TOLERATIONS"] = "spot=true:NoSchedule,gpu"
    place = place_from({f"COUNTERFLOW_KUBE_{key}": value for key, value in said.items()})
    assert (place.image, place.volume_path, place.gpus_per_worker) == ("i", "/v", 2)
    assert place.spot_labels == {"a/b": "c", "d": "e"}
    assert place.spot_tolerations == (
        {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "gpu", "operator": "Exists"},
    )


def pod(phase: str, *, conditions: Any = (), state: Any = None, index: str = "1") -> dict[str, Any]:
    """A pod as the API serves it."""
    statuses = [{"name": "rank", "state": state}] if state else []
    return {
        "metadata": {"name": f"cf-c-{index}", "annotations": {"batch.kubernetes.io/job-completion-index": index}},
        "status": {"phase": phase, "conditions": list(conditions), "containerStatuses": statuses},
    }


def test_states_are_told_in_words() -> None:
    job = {"metadata": {"name": "cf-c"}, "spec": {}}
    nowhere = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes are available",
    }
    assert states.why_waiting(job, [pod("Pending", conditions=[nowhere])]).endswith("0/3 nodes are available")
    image = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    assert "ImagePullBackOff no such image" in states.why_waiting(job, [pod("Pending", state=image)])
    taken = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "PreemptionByScheduler",
        "message": "for a better one",
    }
    assert "PreemptionByScheduler" in states.taken_away([pod("Failed", conditions=[taken])])
    killed = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    assert states.rank_ends([pod("Failed", state=killed)]) == {1: (-9, "OOMKilled")}
    assert not states.living([pod("Succeeded"), pod("Failed")])
    assert states.living([{"metadata": {"name": "new"}}])


def test_pods_of_a_dead_node_are_ended_by_force_some_time_after_their_grace(
    kube_server: KubeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its kubelet a pod stays as it is, with a time to end: for ever, as far as the API server is concerned."""
    graces: list[int] = []
    delete = KubernetesApi.delete_pod

    def noted(api: KubernetesApi, name: str, grace_s: int) -> None:
        graces.append(grace_s)
        delete(api, name, grace_s)

    monkeypatch.setattr(KubernetesApi, "delete_pod", noted)
    kubelet = Kubelet(kube_server, "trial")
    kubelet.start()
    place = Place(image="none", namespace="trial", python=sys.executable)
    patient, done = (
        get_backend("kubernetes", place=place, client=kube_server.client(), dead_after_s=seconds)
        for seconds in (3600.0, 0.0)
    )
    bench = Bench(patient, tmp_path)
    handle = bench.launch(WAIT)
    bench.ready()
    kubelet.stop()
    patient.stop(handle, 1.0)
    assert patient.poll(handle).state == "running", "it may only be cut off from us for a while"
    assert graces == [6, 6]
    hasty = Bench(done, tmp_path)
    seen = hasty.over(handle)
    assert (seen.state, seen.taken, set(graces[2:])) == ("lost", "", {0})
    assert "the node is taken for dead" in seen.detail


def test_a_pod_counts_as_dead_only_well_after_the_time_at_which_it_was_to_have_ended() -> None:
    going = {**pod("Running"), "metadata": {**pod("Running")["metadata"], "deletionTimestamp": "2026-10-14T12:00:00Z"}}
    noon = dt.datetime(2026, 10, 14, 12, tzinfo=dt.UTC).timestamp()
    ended = {**going, "status": {"phase": "Failed"}}
    assert states.unanswered([going, ended, pod("Running")], noon + 1) == [going]
    assert states.unanswered([going], noon - 1) == []
    assert states.rank_of(going) == 1
