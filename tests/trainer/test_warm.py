"""Workers forked from a process that has imported everything: like any other, only sooner."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer_client.backends import LaunchSpec, processes, warm
from trainer_client.backends.local import LocalBackend
from trainer_client.protocol import EXIT_BAD_CONFIG

COMMAND = [sys.executable, "-m", warm.MODULE]
WAIT_S = 60.0

pytestmark = pytest.mark.skipif(not warm.can_be_warm(COMMAND), reason="needs Linux without GPUs")


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A warm process of its own. Its folder has a long name, as folders of tests have."""
    folder = tmp_path_factory.mktemp("warm" + "m" * 120)
    warm.warm_up(folder)
    until((folder / warm.SOCKET).exists, "it is warm")
    yield folder
    warm.cool_down(folder)


@pytest.fixture
def launch(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    monkeypatch.setenv("COUNTERFLOW_WARM_DIR", str(folder))
    backend, handles = LocalBackend(tmp_path / "root"), []

    def launch(words: list[str], **env: str) -> tuple[LocalBackend, Any]:
        spec = LaunchSpec("claim", "job", "attempt", [*COMMAND, *words], env, 1, str(tmp_path / "run"))
        handles.append(backend.launch(spec))
        return backend, handles[0]

    yield launch
    for handle in handles:
        backend.stop(handle, 0.0)


def busy(tmp_path: Path) -> list[str]:
    """A worker that has work for longer than any test."""
    (tmp_path / "s.jsonl").write_text('{"text": "a b c"}\n' * 8)
    (tmp_path / "shards.yaml").write_text("shards:\n- {id: s, path: s.jsonl}\n")
    return [
        "--model",
        "tiny:60k",
        "--shard_config",
        str(tmp_path / "shards.yaml"),
        "--gradient_snapshot_dir",
        str(tmp_path),
        "--steps",
        "1000000",
    ]


def worker_of(backend: LocalBackend, handle: Any) -> Any:
    """Its only worker, once it is at work."""
    log = Path(handle["folder"]).parent.parent / "logs" / "rank-0.log"
    return until(lambda: next((w for w in backend.poll(handle).workers if w.alive), None), f"it runs: {log}")


def test_output_and_exit_code_are_those_of_the_command(launch, folder, tmp_path):
    backend, handle = launch(["--model", "tiny:60k", "--nonsense"], COUNTERFLOW_WORD="here")
    seen = backend.wait(handle, WAIT_S)
    log = (tmp_path / "run" / "logs" / "rank-0.log").read_text()
    assert (seen.state, seen.exit_code) == ("exited", EXIT_BAD_CONFIG)
    assert "nonsense" in log or "shard_config" in log
    assert "Traceback" not in log


def test_a_worker_is_forked_and_is_told_to_leave_like_any_other(launch, tmp_path):
    backend, handle = launch(busy(tmp_path))
    worker = worker_of(backend, handle)
    assert "trainer_client.backends.warm_process" in Path(f"/proc/{worker.pid}/cmdline").read_text().split("\0")
    backend.stop(handle, 0.2)
    assert backend.wait(handle, WAIT_S).state == "exited"


def test_nothing_is_forked_where_the_process_would_not_be_the_same(folder, tmp_path):
    other = dict(os.environ) | {"HF_HOME": "/elsewhere"}
    assert warm.ask(folder, [*COMMAND, "--help"], other) is None
    assert warm.ask(folder, [sys.executable, "train.py"], dict(os.environ)) is None
    assert warm.ask(tmp_path, [*COMMAND, "--help"], dict(os.environ)) is None


@pytest.mark.parametrize("gone", ["launcher", "warm process"])
def test_a_worker_ends_with_its_launcher_and_with_the_process_it_was_forked_from(launch, tmp_path, folder, gone):
    backend, handle = launch(busy(tmp_path))
    worker = processes.identity(worker_of(backend, handle).pid)
    if gone == "launcher":
        os.kill(handle["launcher"]["pid"], signal.SIGKILL)
    else:
        os.kill(json.loads((folder / "process.json").read_text())["pid"], signal.SIGKILL)
    until(lambda: not processes.alive(worker), "the worker has ended")
    until(lambda: backend.poll(handle).state in ("exited", "lost"), "the launch has ended")
