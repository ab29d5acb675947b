"""SkyPilot through its Python SDK and its real local API server, where both are installed.

`COUNTERFLOW_SKYPILOT_PYTHON` names an interpreter that has it: `pip install -r requirements-skypilot.txt` in a venv of its own.
No cloud account is at hand, so its server refuses what needs one; that refusal must reach the job.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.bench import WAIT, Bench
from tests.services import free_port
from trainer_client.backends import BackendError, get_backend

PYTHON = os.environ.get("COUNTERFLOW_SKYPILOT_PYTHON", "")
TASK = "resources: {infra: aws, cpus: 2+}\nsetup: mount /work\n"

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
    assert made["resources"] == {"infra": "aws", "cpus": "2+", "use_spot": True}
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
