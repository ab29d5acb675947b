"""A machine under notice whose server says nothing: its rank saves and leaves all the same."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.backends.bench import WAIT, Bench
from tests.machines.moto_cloud import Metadata
from tests.services import wait_until
from trainer_client.backends import LaunchSpec, get_backend
from trainer_client.backends.agent import MARGIN_S, Agent
from trainer_client.backends.machine_files import MachineFiles


@pytest.fixture
def taken_at() -> dict[str, float]:
    """Machine -> when it is taken, as its metadata service says."""
    return {}


@pytest.fixture
def machine(tmp_path: Path, taken_at: dict[str, float]) -> Iterator[MachineFiles]:
    """A machine whose agent asks a metadata service."""
    metadata = ThreadingHTTPServer(("127.0.0.1", 0), type("One", (Metadata,), {"taken_at": taken_at}))
    threading.Thread(target=metadata.serve_forever, daemon=True).start()
    files = MachineFiles(tmp_path / "machines", "m0")
    env = os.environ | {
        "COUNTERFLOW_NODE_IP": "127.0.0.1",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{metadata.server_port}/m0",
    }
    argv = [sys.executable, "-m", "trainer_client.backends.agent", str(files.folder), "--spot-notices"]
    with subprocess.Popen(argv, env=env) as agent:
        wait_until(lambda: files.agent() is not None, within_s=60, what="the agent speaks")
        yield files
        agent.terminate()
    metadata.shutdown()


def test_a_rank_leaves_before_its_machine_is_taken_though_no_order_comes(
    machine: MachineFiles, taken_at: dict[str, float], tmp_path: Path
) -> None:
    bench = Bench(get_backend("aws", root=machine.folder.parent), tmp_path, machines=["m0"])
    handle = bench.launch(WAIT, num_workers=1, grace_s=5.0)
    bench.ready(1)
    taken_at["m0"] = time.time() + MARGIN_S
    seen = bench.over(handle)
    assert seen.exit_code == 81
    assert not (Path(handle["folder"]) / "stop.json").exists()
    assert machine.notice() is not None


def test_the_server_has_the_rest_of_the_notice_for_its_own_order(tmp_path: Path) -> None:
    agent = Agent(tmp_path / "m0")
    spec = LaunchSpec("c", "j", "a", ["true"], {}, 1, str(tmp_path), grace_s=40.0)
    now = time.time()
    leaves = {}
    for left_s in (None, 120.0, 60.0, 8.0):
        agent.ends_by = None if left_s is None else now + left_s
        leaves[left_s] = agent.leaves_unasked(spec)
    assert leaves == {None: False, 120.0: False, 60.0: True, 8.0: True}
