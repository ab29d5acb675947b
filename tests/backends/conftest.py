"""The backends that can be had here, each behind the same fixture."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.bench import Bench, folder_for_all
from tests.backends.kube_emulator import Kubelet, KubeServer
from tests.backends.kubeflow_controller import TrainJobController
from tests.backends.ray_head import PYTHON, RayHead, has_ray
from tests.backends.skypilot_nodes import TASK, SkyPilotNodes
from tests.backends.slurm_cluster import SlurmCluster
from tests.services import require_service, wait_until
from trainer_client.backends import get_backend
from trainer_client.backends.kubernetes_place import Place

ENGINES = ("local", "aws", "slurm", "kubernetes", "kubeflow", "ray", "skypilot")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A launch through SkyPilot takes a minute or two."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec is not None and callspec.params.get("bench") == "skypilot":
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Slurm, running, for the whole session. Not below pytest's own folder, which only root may enter: munged is not root."""
    with folder_for_all() as folder:
        cluster = SlurmCluster(folder)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The Slurm backend on the real cluster."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    backend = get_backend("slurm", partition="ondemand", spot_partition="spot", fresh_s=0.1)
    bench = Bench(backend, tmp_path)
    yield bench
    bench.clear()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(get_backend("local", root=tmp_path / "root"), tmp_path)
    yield bench
    bench.clear()


@pytest.fixture(scope="session")
def agents() -> Iterator[tuple[Path, list[str]]]:
    """Three machines for the whole session, each a process that runs its agent, and the folder that they share with us."""
    names = ["m0", "m1", "m2"]
    with folder_for_all() as root:
        argv = [sys.executable, "-m", "trainer_client.backends.agent"]
        env = os.environ | {"COUNTERFLOW_NODE_IP": "127.0.0.1"}
        processes = [subprocess.Popen([*argv, str(root / name)], env=env) for name in names]
        wait_until(
            lambda: all((root / name / "agent.json").exists() for name in names), within_s=60, what="agents speak"
        )
        yield root, names
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(30)


@pytest.fixture
def aws(agents: tuple[Path, list[str]], tmp_path: Path) -> Iterator[Bench]:
    """The backend of bought machines; who sells them does not matter to it."""
    root, names = agents
    bench = Bench(get_backend("aws", root=root), tmp_path, claims=uuid.uuid4().hex[:6], machines=names)
    yield bench
    bench.clear()


@pytest.fixture
def kube_server() -> Iterator[KubeServer]:
    """kmock's API server, a new one for each test: it keeps every request, and is slower with each."""
    server = KubeServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def kubernetes(kube_server: KubeServer, tmp_path: Path) -> Iterator[Bench]:
    """The Kubernetes backend on the emulator, with processes of this machine in place of pods."""
    kubelet = Kubelet(kube_server, "trial")
    kubelet.start()
    place = Place(image="none", namespace="trial", python=sys.executable)
    bench = Bench(get_backend("kubernetes", place=place, client=kube_server.client()), tmp_path)
    yield bench
    bench.clear()
    kubelet.stop()


@pytest.fixture
def kubeflow(kube_server: KubeServer, tmp_path: Path) -> Iterator[Bench]:
    """The Kubernetes backend with TrainJobs, which a stand-in for Kubeflow Trainer makes Jobs of."""
    controllers = [Kubelet(kube_server, "trial"), TrainJobController(kube_server, "trial")]
    for controller in controllers:
        controller.start()
    place = Place(image="none", namespace="trial", python=sys.executable, runtime="counterflow")
    bench = Bench(get_backend("kubernetes", place=place, client=kube_server.client()), tmp_path)
    yield bench
    bench.clear()
    for controller in reversed(controllers):
        controller.stop()


@pytest.fixture(scope="session")
def ray_head() -> Iterator[RayHead]:
    """A real Ray on loopback, where one is installed: it is large, and has an environment of its own in CI."""
    require_service("Ray", has_ray(), "COUNTERFLOW_RAY_PYTHON names no interpreter with it (requirements-ray.txt)")
    with folder_for_all() as folder:
        head = RayHead(folder)
        try:
            head.start()
            yield head
        finally:
            head.stop()


@pytest.fixture
def ray(ray_head: RayHead, tmp_path: Path) -> Iterator[Bench]:
    backend = get_backend("ray", address=ray_head.address, python=PYTHON, bundle={"CPU": 1.0})
    bench = Bench(backend, tmp_path, claims=uuid.uuid4().hex[:6])
    yield bench
    bench.clear()


@pytest.fixture(scope="session")
def skypilot_nodes(slurm_cluster: SlurmCluster) -> Iterator[str]:
    """The interpreter of a SkyPilot that can bring up nodes; it is too large, and too slow, to be had for every run."""
    python = os.environ.get("COUNTERFLOW_SKYPILOT_PYTHON", "")
    if not python:
        pytest.skip("COUNTERFLOW_SKYPILOT_PYTHON names no interpreter with SkyPilot")
    with folder_for_all() as folder, pytest.MonkeyPatch.context() as patch:
        nodes = SkyPilotNodes(python, folder, slurm_cluster)
        try:
            nodes.start(patch)
            yield python
        finally:
            nodes.stop()


@pytest.fixture
def skypilot(skypilot_nodes: str, tmp_path: Path) -> Iterator[Bench]:
    (tmp_path / "task.yaml").write_text(TASK)
    backend = get_backend(
        "skypilot", root=tmp_path / "machines", python=skypilot_nodes, task=str(tmp_path / "task.yaml"),
        node_python=sys.executable,
    )  # fmt: skip
    bench = Bench(backend, tmp_path, claims=uuid.uuid4().hex[:6], patience_s=400.0)
    yield bench
    bench.clear()


@pytest.fixture(params=ENGINES)
def bench(request: pytest.FixtureRequest) -> Bench:
    """Every backend in turn."""
    found: Bench = request.getfixturevalue(request.param)
    return found
