"""What is Ray's own. Where Ray is installed the contract runs on a real one, too."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from tests.backends.bench import WAIT, Bench
from tests.backends.ray_head import CPUS, PYTHON, RayHead
from tests.services import free_port, wait_until
from trainer_client.backends import BackendError, LaunchSpec, get_backend
from trainer_client.backends.rank_files import launch_folder


def test_a_worker_of_ray_that_is_lost_takes_its_rank_along_and_ends_the_others(ray: Bench) -> None:
    handle = ray.launch(WAIT)
    ray.ready()
    rank = psutil.Process(ray.seen(handle, "running").workers[1].pid)
    worker = rank.parent().parent()  # type: ignore[union-attr]
    os.kill(worker.pid, signal.SIGKILL)
    seen = ray.over(handle)
    assert {worker["exit_code"] for worker in seen.workers} == {81}  # type: ignore[index]
    assert not rank.is_running()


def test_a_node_that_is_lost_ends_the_launch_and_the_rank_on_the_other_node_leaves_in_order(
    ray_head: RayHead, ray: Bench
) -> None:
    node = ray_head.join(CPUS - 1)
    try:
        wide = get_backend("ray", address=ray_head.address, python=PYTHON, bundle={"CPU": CPUS - 1.0})
        bench = Bench(wide, ray.folder, claims=uuid.uuid4().hex[:6])  # one rank fills most of a node
        handle = bench.launch(WAIT)
        bench.ready()
        ranks = [psutil.Process(worker.pid) for worker in bench.seen(handle, "running").workers]
        node.kill()
        seen = bench.over(handle)
        codes = sorted(worker["exit_code"] for worker in seen.workers if worker["exit_code"] is not None)  # type: ignore[index]
        assert 81 in codes, "the one on the head had time to leave"
        assert seen.state == "exited"
        wait_until(lambda: not any(rank.is_running() for rank in ranks), within_s=30, what="no rank is left")
    finally:
        node.kill()


def test_faults_are_told_from_refusals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COUNTERFLOW_RAY_ADDRESS", raising=False)
    with pytest.raises(BackendError, match="COUNTERFLOW_RAY_ADDRESS is not set") as unset:
        get_backend("ray")
    assert unset.value.permanent
    with pytest.raises(BackendError, match="cannot be reached") as away:
        get_backend("ray", address=f"http://127.0.0.1:{free_port()}").list("")
    assert not away.value.permanent


def test_a_launch_that_ray_starts_again_does_not_run_twice(tmp_path: Path) -> None:
    spec = LaunchSpec("c1", "j1", "a1", [sys.executable, "-c", "print('again')"], {}, 1, str(tmp_path / "run"))
    folder = launch_folder(spec)
    (folder / "started.json").touch()
    words = [sys.executable, "-m", "trainer_client.backends.ray_driver", str(folder)]
    assert subprocess.run(words, check=False, capture_output=True).returncode == 83
