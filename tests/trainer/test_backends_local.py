"""What only the local backend promises, with real processes (small scripts, no torch); the rest is in `tests/backends`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.test_reporter import eventually
from trainer_client.backends import BackendError, LaunchSpec, Observation, get_backend, processes
from trainer_client.backends.failures import classify
from trainer_client.backends.local import LocalBackend
from trainer_client.backends.ranklogs import MAX_BYTES

Launch = Callable[..., dict[str, Any]]

ENVIRONMENT = """
import os, sys
print(os.environ["RANK"], os.environ["WORLD_SIZE"], os.environ["COUNTERFLOW_ATTEMPT"], os.environ["OMP_NUM_THREADS"])
"""
WAIT = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(81)); print('ready', flush=True); time.sleep(60)"


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[LocalBackend]:
    made = get_backend("local", root=tmp_path / "root")
    assert isinstance(made, LocalBackend)
    yield made
    for handle in made.list(""):
        made.stop(handle, 0.0)
        made.wait(handle, 60.0)


@pytest.fixture
def launch(backend: LocalBackend, tmp_path: Path) -> Launch:
    def start(script: str, **fields: Any) -> dict[str, Any]:
        spec = LaunchSpec(
            **{
                "claim": "c1",
                "job": "j1",
                "attempt": "a1",
                "command": [sys.executable, "-c", script],
                "env": {},
                "num_workers": 2,
                "run_dir": str(tmp_path / "run"),
                "grace_s": 5.0,
            }
            | fields
        )
        return json.loads(json.dumps(backend.launch(LaunchSpec.from_json(json.loads(json.dumps(spec.to_json()))))))

    return start


def log(tmp_path: Path, rank: int) -> str:
    path = tmp_path / "run" / "logs" / f"rank-{rank}.log"
    return path.read_text() if path.exists() else ""


def wait_ready(tmp_path: Path, ranks: int = 2) -> None:
    eventually(lambda: all("ready" in log(tmp_path, rank) for rank in range(ranks)))


def test_ranks_share_the_cores_of_this_machine(backend: LocalBackend, launch: Launch, tmp_path: Path) -> None:
    seen = backend.wait(launch(ENVIRONMENT), 60.0)
    assert (seen.state, seen.exit_code, seen.failure_class) == ("exited", 0, None)
    assert [(worker.rank, worker.alive, worker.exit_code) for worker in seen.workers] == [(0, False, 0), (1, False, 0)]
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert [log(tmp_path, rank).split() for rank in (0, 1)] == [[str(rank), "2", "a1", str(threads)] for rank in (0, 1)]


def test_ranks_end_with_their_launcher_and_the_launch_is_lost(
    backend: LocalBackend, launch: Launch, tmp_path: Path
) -> None:
    handle = launch(WAIT)
    wait_ready(tmp_path)
    os.kill(handle["launcher"]["pid"], signal.SIGKILL)
    seen = backend.wait(handle, 60.0)
    assert seen.state == "lost"
    assert not any(worker.alive for worker in seen.workers)


def test_a_pid_that_another_process_has_now_is_not_taken_for_ours(
    backend: LocalBackend, launch: Launch, tmp_path: Path
) -> None:
    handle = launch("pass")
    backend.wait(handle, 60.0)
    other = handle | {
        "launcher": processes.identity(os.getpid()) | {"started_at": 1.0},
        "folder": str(tmp_path / "none"),
    }
    assert backend.poll(other).state == "lost"
    backend.stop(other, 0.0)  # would end this very process


def test_what_a_claim_left_half_done_is_started_by_the_next_call(
    backend: LocalBackend, launch: Launch, tmp_path: Path
) -> None:
    folder = tmp_path / "run" / "launches" / "c1"
    folder.mkdir(parents=True)
    gone = {"pid": 2**22 - 3, "started_at": 1.0}
    (folder / "handle.json").write_text(
        json.dumps({"claim": "c1", "folder": str(folder), "launcher": gone, "tags": {}})
    )
    assert backend.wait(launch(ENVIRONMENT), 60.0).exit_code == 0


def test_logs_are_bounded(backend: LocalBackend, launch: Launch, tmp_path: Path) -> None:
    line = "x" * 9999
    script = f"for n in range({3 * MAX_BYTES // 10_000 + 200}): print({line!r})\nprint('end')"
    assert backend.wait(launch(script, num_workers=1), 60.0).exit_code == 0
    files = sorted((tmp_path / "run" / "logs").iterdir())
    assert [path.name for path in files] == ["rank-0.log", "rank-0.log.1", "rank-0.log.2"]
    assert all(path.stat().st_size <= MAX_BYTES for path in files)
    assert log(tmp_path, 0).endswith("end\n")


@pytest.mark.parametrize("fields", [{"claim": "../x"}, {"num_workers": 0}, {"command": []}])
def test_a_spec_that_cannot_be_launched_is_refused(fields: dict[str, Any]) -> None:
    good = {
        "claim": "c",
        "job": "j",
        "attempt": "a",
        "command": ["x"],
        "env": {},
        "num_workers": 1,
        "run_dir": "/tmp/x",
    }
    with pytest.raises(ValueError, match=r"claim|num_workers|command"):
        LaunchSpec(**good | fields)


def test_an_unknown_backend_and_state_name_the_known_ones() -> None:
    with pytest.raises(BackendError, match=r"known: .*local"):
        get_backend("fog")
    with pytest.raises(ValueError, match="starting, running"):
        Observation("dreaming")


@pytest.mark.parametrize(
    ("codes", "tails", "expected"),
    [
        ({0: 0, 1: 0}, {}, None),
        ({0: 80, 1: 80}, {}, None),
        ({0: 64, 1: -15}, {0: "launch_finetune: --lr must"}, "user_error"),
        ({0: 1, 1: 1}, {0: "Watchdog caught collective operation timeout"}, "timeout"),
        ({0: 1, 1: -9}, {0: "RuntimeError: Connection closed by peer"}, "lost_worker"),
        ({0: 1}, {0: "OSError: [Errno 28] No space left on device"}, "disk_full"),
        ({0: 1}, {0: "ValueError: what"}, "crashed"),
    ],
)
def test_ends_are_classified(codes: dict[int, int], tails: dict[int, str], expected: str | None) -> None:
    assert classify(codes, None, tails)[0] == expected
