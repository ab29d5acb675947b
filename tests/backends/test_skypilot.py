"""SkyPilot through its Python SDK and its real local API server, where both are installed.

`COUNTERFLOW_SKYPILOT_PYTHON` names an interpreter that has it: `pip install -r requirements-skypilot.txt` in a venv of its own.
No cloud account is at hand, so its server refuses what needs one; that refusal must reach the job. What wants nodes has them from a
Slurm (`skypilot_nodes.py`), as the contract (`test_contract.py`, engine skypilot) does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from tests.backends.bench import WAIT, Bench
from tests.services import free_port, wait_until
from trainer_client.backends import BackendError, get_backend
from workers.orphans import orphans_sweep

PYTHON = os.environ.get("COUNTERFLOW_SKYPILOT_PYTHON", "")
TASK = "resources: {infra: aws, cpus: 2+}\nsetup: mount /work\n"
# A catalogue as SkyPilot fetches it from its repository on GitHub, a few rows of it.
CATALOGUE = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
g5.xlarge,A10G,1.0,4.0,16.0,,1.006,0.4221,us-east-1,use1-az1,x86_64
g5.xlarge,A10G,1.0,4.0,16.0,,1.006,0.3905,us-east-1,use1-az2,x86_64
g5.xlarge,A10G,1.0,4.0,16.0,,1.258,0.51,eu-west-1,euw1-az1,x86_64
"""

needs_skypilot = pytest.mark.skipif(not PYTHON, reason="COUNTERFLOW_SKYPILOT_PYTHON names no interpreter with SkyPilot")


@pytest.fixture(scope="module")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A server of our own: its state in a home of our own, on a port of our own."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
        patch.setenv("SKYPILOT_API_SERVER_LOCAL_PORT", str(port))
        sky = str(Path(PYTHON).parent / "sky")
        subprocess.run([sky, "api", "start", "--host", "127.0.0.1", "--port", str(port)], check=True, timeout=180)
        yield
        subprocess.run([sky, "api", "stop"], check=False, timeout=60)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    (tmp_path / "task.yaml").write_text(TASK)
    backend = get_backend(
        "skypilot", root=tmp_path / "machines", python=PYTHON or "/nowhere/python", task=str(tmp_path / "task.yaml")
    )
    return Bench(backend, tmp_path, claims=uuid.uuid4().hex[:6])


def test_the_task_of_the_operator_gets_our_nodes_and_their_agents(bench: Bench) -> None:
    backend: Any = bench.backend
    made = backend._task(bench.spec(WAIT, num_workers=3, spot="only"))
    assert (made["num_nodes"], made["setup"]) == (3, "mount /work")
    labels = {"counterflow-job": "j1", "counterflow-attempt": "a1"}
    assert made["resources"] == {"infra": "aws", "cpus": "2+", "use_spot": True, "labels": labels}
    assert f"agent --once {bench.folder}/machines/{bench.claim('c1')}-$SKYPILOT_NODE_RANK" in made["run"]
    either = backend._task(bench.spec(WAIT, spot="prefer"))
    assert either["resources"]["any_of"] == [{"use_spot": True}, {"use_spot": False}]


def test_an_interpreter_that_is_not_there_may_be_mended(bench: Bench) -> None:
    bench.backend.python = "/nowhere/python"  # type: ignore[attr-defined]
    with pytest.raises(BackendError, match="SkyPilot cannot be asked") as refused:
        bench.launch(WAIT)
    assert not refused.value.permanent


@needs_skypilot
@pytest.mark.usefixtures("api_server")
@pytest.mark.timeout(400)
def test_what_skypilot_refuses_is_the_end_of_the_launch_and_said(bench: Bench) -> None:
    handle = bench.launch(WAIT)
    assert bench.launch(WAIT) == handle
    seen = bench.over(handle)
    assert seen.state == "lost"
    assert "Cloud access is not set up" in seen.detail
    assert bench.backend.list("job=j1") == []
    bench.backend.stop(handle, 1.0)  # too late, and no harm


def test_a_cluster_is_labelled_with_what_every_cloud_takes(bench: Bench) -> None:
    backend: Any = bench.backend
    (Path(backend.task)).write_text("resources: {infra: gcp, labels: {owner: ml}}\n")
    made = backend._task(bench.spec(WAIT, tags={"counterflow": "Team A / 1", "note": "not a label"}))
    labels = made["resources"]["labels"]
    assert set(labels) == {"owner", "counterflow-launch", "counterflow-job", "counterflow-attempt"}
    assert labels["counterflow-launch"].isalnum(), "what clouds refuse is known by its hash"
    assert labels["owner"] == "ml"


@needs_skypilot
@pytest.mark.timeout(300)
def test_offers_are_priced_by_skypilots_own_catalogue(bench: Bench, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / ".sky" / "catalogs" / "v8" / "aws" / "vms.csv"
    path.parent.mkdir(parents=True)
    path.write_text(CATALOGUE)
    Path(bench.backend.task).write_text("resources: {infra: aws, accelerators: 'A10G:1'}\n")  # type: ignore[attr-defined]
    named = {"cloud": "aws", "instance_type": "g5.xlarge"}
    offers = [named, named | {"region": "eu-west-1"}, named | {"is_spot": True}, {"is_spot": True}, {"is_spot": False}]
    found = bench.backend.quotes([*offers, named | {"instance_type": "p9.huge"}])
    assert [one["price_usd_per_hour"] for one in found] == [1.006, 1.258, 0.3905, 0.3905, 1.006, 0.0]
    assert "'p9.huge' not found" in found[-1]["why"]
    assert not any("why" in one for one in found[:-1])


@needs_skypilot
@pytest.mark.django_db
@pytest.mark.timeout(1200)
def test_a_cluster_of_which_all_files_are_lost_is_found_and_given_back(skypilot: Bench, settings: Any) -> None:
    settings.DEPLOYMENT = "Team A / 1"
    backend: Any = skypilot.backend
    handle = backend.launch(skypilot.spec(WAIT, attempt=str(uuid.uuid4()), tags={"counterflow": settings.DEPLOYMENT}))
    wait_until(lambda: backend.poll(handle).state == "running", within_s=400, what="it runs", every_s=1)
    for folder in (backend.root, skypilot.folder / "run"):
        shutil.rmtree(folder)
    assert backend.poll(handle).state == "running"
    assert backend.list("counterflow=another") == []
    (stray,) = backend.list(f"counterflow={settings.DEPLOYMENT}")
    assert (stray["claim"], stray["num_workers"]) == (handle["claim"], 2)
    assert orphans_sweep(backend=backend, now=timezone.now()) == {handle["claim"]: "stopped"}
    wait_until(lambda: not backend.list(""), within_s=300, what="the cluster has gone", every_s=2)
    assert backend.poll(handle).state == "lost"
