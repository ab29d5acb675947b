"""What is TrainJobs' own: objects that Kubeflow's models know in full, runtimes that fit, the variables of torch's runtimes, quotas
by Kueue, and what ends a TrainJob's life. Contract and Jobs have tests of their own."""

from __future__ import annotations

import copy
import dataclasses
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import kubernetes as library
import pytest
from kubeflow_trainer_api import models

from tests.backends.bench import WAIT, Bench
from tests.backends.kube_emulator import KubeServer
from tests.backends.kubeflow_controller import KIND, TrainJobController, child_job, example_runtime
from tests.backends.test_kubernetes import PLAIN, RICH, round_trip, spec_of
from tests.services import wait_until
from trainer_client.backends import Backend, BackendError, get_backend
from trainer_client.backends.kubernetes_objects import KEPT_S, object_name
from trainer_client.backends.kubernetes_place import Place, place_from
from trainer_client.backends.kubernetes_states import why_waiting
from trainer_client.backends.kubernetes_trainjobs import job_of, trainjob_object, unfit

ADDRESS = "import os; print(os.environ['RANK'], os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'])"
SAID = {"COUNTERFLOW_KUBE_IMAGE": "i", "COUNTERFLOW_KUBE_VOLUME_CLAIM": "v"}


def kubeflow_place(place: Place) -> Place:
    return dataclasses.replace(place, priority_class="", runtime="counterflow")


def stock_runtime() -> dict[str, Any]:
    """As Kubeflow installs `torch-distributed`: nothing is said of restarts, so Kubernetes' own six tries hold."""
    runtime = example_runtime()
    job = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    del job["backoffLimit"], job["template"]["spec"]["restartPolicy"]
    return runtime


@pytest.mark.parametrize("place", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("spot", ["never", "prefer", "only"])
def test_every_field_of_a_trainjob_is_one_that_kubeflow_knows(place: Place, spot: str) -> None:
    body = trainjob_object(spec_of(spot), kubeflow_place(place), "/srv/runs/r/launches/c")
    known = models.TrainerV1alpha1TrainJob.from_dict
    assert known(body).to_dict() == body
    wrong = copy.deepcopy(body)
    pods = wrong["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0][
        "template"
    ]
    pods["spec"]["template"]["spec"]["priorityClassName"] = "high"
    assert known(wrong).to_dict() != wrong, "this check sees a field that may not be patched"


@pytest.mark.parametrize("place", [PLAIN, RICH], ids=["plain", "rich"])
def test_the_job_that_comes_of_a_trainjob_is_one_that_the_api_knows(place: Place) -> None:
    """By the stand-in's merge, which is Kubeflow's in the little that is used."""
    job = child_job(trainjob_object(spec_of("only"), kubeflow_place(place), "/f"), example_runtime())
    assert round_trip(job, "V1Job") == job
    pods = job["spec"]["template"]["spec"]
    assert pods["terminationGracePeriodSeconds"] == 35
    assert [mount["mountPath"] for mount in pods["containers"][0]["volumeMounts"]] == ["/srv/runs"]
    assert pods.get("tolerations") == list(place.spot_tolerations)
    assert pods["containers"][0].get("resources", {}).get("limits", {}).get("nvidia.com/gpu") == (
        "2" if place is RICH else None
    )


def test_the_runtime_of_the_documentation_fits_and_kubeflows_own_does_not() -> None:
    runtime = example_runtime()
    assert models.TrainerV1alpha1ClusterTrainingRuntime.from_dict(runtime).to_dict() == runtime
    assert unfit(runtime) == ""
    assert "restartPolicy Never, backoffLimit 0" in unfit(stock_runtime())
    restarting = example_runtime()
    restarting["spec"]["template"]["spec"]["failurePolicy"] = {"maxRestarts": 3}
    assert "no maxRestarts" in unfit(restarting)
    mpi = example_runtime()
    mpi["spec"]["mlPolicy"] = {"mpi": {}}
    assert "no torch policy" in unfit(mpi)
    assert "no replicated job node" in unfit({"spec": {"mlPolicy": {"torch": {}}}})


def test_names_leave_room_for_those_that_kubeflow_makes_of_them() -> None:
    """The name of a pod is JOB-INDEX-RANDOM, and JobSet refuses one above 63 characters."""
    for claim in ("0123abcd" * 4, "a" * 42, "a" * 43, "A" * 128):
        assert len(f"{job_of(object_name(claim))}-4095-abcde") <= 63


def test_a_launch_that_kueue_admits_finds_rank_0_by_the_runtimes_variables(
    kube_server: KubeServer, kubeflow: Bench
) -> None:
    bench = queued(kube_server, kubeflow)
    handle = bench.launch(ADDRESS)
    assert bench.backend.poll(handle).detail == "job cf-c1 waits for its admission by Kueue (queue team-a)"
    assert bench.backend.list("job=j1") == [handle]
    trainjobs(kube_server, "patch_namespaced_custom_object", name="cf-c1", body={"spec": {"suspend": False}})
    assert bench.over(handle).exit_code == 0
    assert [bench.log(rank).split() for rank in range(2)] == [
        [str(rank), "cf-c1-node-0-0.cf-c1", "29500"] for rank in range(2)
    ]


def test_a_launch_that_kueue_evicts_is_lost_and_its_trainjob_can_be_deleted(
    kube_server: KubeServer, kubeflow: Bench
) -> None:
    bench = queued(kube_server, kubeflow)
    handle = bench.launch(WAIT)
    (bench.folder / "run" / "launches" / "c1" / "ranks" / "rank-0.started").touch()
    assert bench.backend.poll(handle).state == "lost"
    bench.backend.stop(handle, 0.0)
    bench.over(handle)
    assert bench.backend.list("job=j1") == []


def test_the_end_of_a_stop_is_seen_when_the_pods_are_gone(kube_server: KubeServer, kubeflow: Bench) -> None:
    handle = kubeflow.launch(WAIT)
    kubeflow.ready()
    kubeflow.backend.stop(handle, 20.0)
    assert kubeflow.over(handle).exit_code == 81
    pods = library.client.CoreV1Api(kube_server.client()).list_namespaced_pod("trial").items
    assert {pod.status.phase for pod in pods} <= {"Succeeded", "Failed"}
    wait_until(
        lambda: not trainjobs(kube_server, "list_namespaced_custom_object")["items"], within_s=30, what="it is gone"
    )


def test_an_ended_trainjob_is_kept_for_a_day(kube_server: KubeServer, kubeflow: Bench) -> None:
    """A Job has a time to live of its own, a TrainJob has none."""
    kubeflow.over(kubeflow.launch("pass", num_workers=1))

    def names() -> list[str]:
        found = trainjobs(kube_server, "list_namespaced_custom_object")["items"]
        return [one["metadata"]["name"] for one in found if not one["metadata"].get("deletionTimestamp")]

    assert kubeflow.backend.list("") == []
    assert names() == ["cf-c1"]
    status = trainjobs(kube_server, "get_namespaced_custom_object", name="cf-c1")["status"]
    status["conditions"][0]["lastTransitionTime"] = "2026-01-01T00:00:00Z"
    trainjobs(kube_server, "patch_namespaced_custom_object", name="cf-c1", body={"status": status})
    assert kubeflow.backend.list("") == []
    assert names() == []
    assert KEPT_S == 86_400


def test_a_job_from_before_a_runtime_was_named_is_found_and_followed(kube_server: KubeServer, kubeflow: Bench) -> None:
    plain = dataclasses.replace(kubeflow.backend.place, runtime="")  # type: ignore[attr-defined]
    before = Bench(get_backend("kubernetes", place=plain, client=kube_server.client()), kubeflow.folder)
    handle = before.launch(WAIT)
    assert handle["kind"] == "Job"
    assert kubeflow.launch(WAIT) == handle
    kubeflow.ready()
    assert kubeflow.backend.list("job=j1") == [handle]
    older = {key: value for key, value in handle.items() if key != "kind"}
    assert kubeflow.backend.poll(older).state == "running"
    kubeflow.backend.stop(older, 5.0)
    assert kubeflow.over(older).exit_code == 81


def test_a_trainjob_from_when_a_runtime_was_named_is_found_and_stopped(
    kube_server: KubeServer, kubeflow: Bench
) -> None:
    handle = kubeflow.launch(WAIT)
    plain = dataclasses.replace(kubeflow.backend.place, runtime="")  # type: ignore[attr-defined]
    after = Bench(get_backend("kubernetes", place=plain, client=kube_server.client()), kubeflow.folder)
    assert after.launch(WAIT) == handle
    after.ready()
    assert after.backend.list("job=j1") == [handle]
    after.backend.stop(handle, 5.0)
    assert after.over(handle).exit_code == 81


def test_a_runtime_that_is_missing_or_starts_pods_again_is_refused(kube_server: KubeServer, bench_dir: Bench) -> None:
    backend = on(kube_server.client())
    with pytest.raises(BackendError, match=r"ClusterTrainingRuntime counterflow .* there is none") as missing:
        backend.launch(bench_dir.spec(WAIT))
    controller = TrainJobController(kube_server, "trial", stock_runtime())
    controller.start()
    controller.stop()
    with pytest.raises(BackendError, match="starts failed pods again") as restarting:
        backend.launch(bench_dir.spec(WAIT))
    assert missing.value.permanent
    assert restarting.value.permanent
    assert backend.list("") == []


def test_a_cluster_without_kubeflow_trainer_is_told_in_words(no_trainer: str, bench_dir: Bench) -> None:
    client = library.client.ApiClient(library.client.Configuration(host=no_trainer))
    for order in (lambda: on(client).launch(bench_dir.spec(WAIT)), lambda: on(client).list("")):
        with pytest.raises(BackendError, match="Kubeflow Trainer is not installed") as refused:
            order()
        assert refused.value.permanent


@pytest.mark.parametrize("status", [403, 404])
def test_without_a_runtime_trainjobs_may_be_unknown_or_forbidden(
    no_trainer: str, bench_dir: Bench, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Answers, "unknown", status)
    client = library.client.ApiClient(library.client.Configuration(host=no_trainer))
    place = Place(image="none", namespace="trial")
    assert get_backend("kubernetes", place=place, client=client).list("") == []


def test_the_runtime_is_read_from_the_environment() -> None:
    def named(text: str, **more: str) -> Place:
        return place_from(SAID | {"COUNTERFLOW_KUBE_RUNTIME": text} | more)

    assert (place_from(SAID).runtime, named("x").runtime_kind) == ("", "ClusterTrainingRuntime")
    own = named("TrainingRuntime/x")
    assert trainjob_object(spec_of(), own, "/f")["spec"]["runtimeRef"]["kind"] == "TrainingRuntime"
    assert own.runtime == "x"
    with pytest.raises(BackendError, match="Runtime is not ClusterTrainingRuntime or TrainingRuntime"):
        named("Runtime/x")
    with pytest.raises(BackendError, match="set in their runtime"):
        named("x", COUNTERFLOW_KUBE_PRIORITY_CLASS="high")


def test_one_of_which_nothing_is_made_yet_says_whom_it_waits_for() -> None:
    body = trainjob_object(spec_of(), kubeflow_place(PLAIN), "/f")
    assert why_waiting(body, []).endswith("waits for Kubeflow Trainer to make its pods")


@pytest.fixture
def bench_dir(tmp_path: Any) -> Bench:
    """Only for its launches: there is no backend behind it."""
    return Bench(None, tmp_path)  # type: ignore[arg-type]


class Answers(http.server.BaseHTTPRequestHandler):
    """As an API server does for a group that it does not know, or that it does not show; an empty list for Jobs."""

    unknown = 404

    def do_GET(self) -> None:
        known = self.path.startswith("/apis/batch/") and "cf-c1" not in self.path
        self.send_response(200 if known else self.unknown)
        self.end_headers()
        self.wfile.write(b'{"items": []}' if known else b"404 page not found\n")

    def log_message(self, *_: Any) -> None:
        """Not into the tests' output."""


@pytest.fixture
def no_trainer() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def on(client: Any) -> Backend:
    place = Place(image="none", namespace="trial", runtime="counterflow")
    return get_backend("kubernetes", place=place, client=client)


def queued(server: KubeServer, bench: Bench) -> Bench:
    place = dataclasses.replace(bench.backend.place, queue="team-a")  # type: ignore[attr-defined]
    return Bench(get_backend("kubernetes", place=place, client=server.client()), bench.folder)


def trainjobs(server: KubeServer, verb: str, **said: Any) -> Any:
    """One call about the TrainJobs of the tests' namespace, as Kueue or an operator makes it."""
    where = KIND | {"namespace": "trial", "plural": "trainjobs"}
    return getattr(library.client.CustomObjectsApi(server.client()), verb)(**where, **said)
