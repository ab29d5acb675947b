"""The local backend with real processes (small scripts, no torch)."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
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
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)


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


def test_ranks_get_their_place_and_their_output_is_kept(backend: LocalBackend, launch: Launch, tmp_path: Path) -> None:
    seen = backend.wait(launch(ENVIRONMENT), 60.0)
    assert (seen.state, seen.exit_code, seen.failure_class) == ("exited", 0, None)
    assert [(worker.rank, worker.alive, worker.exit_code) for worker in seen.workers] == [(0, False, 0), (1, False, 0)]
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert [log(tmp_path, rank).split() for rank in (0, 1)] == [[str(rank), "2", "a1", str(threads)] for rank in (0, 1)]


def test_one_claim_starts_one_launch_however_many_ask(backend: LocalBackend, launch: Launch, tmp_path: Path) -> None:
    handles: list[dict[str, Any]] = []
    askers = [threading.Thread(target=lambda: handles.append(launch(WAIT))) for _ in range(6)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len({handle["launcher"]["pid"] for handle in handles}) == 1
    wait_ready(tmp_path)
    assert log(tmp_path, 0).count("ready") == 1
    assert launch(WAIT)["launcher"] == handles[0]["launcher"]


def test_a_stop_is_a_term_that_ranks_may_answer(backend: LocalBackend, launch: Launch, tmp_path: Path) -> None:
    handle = launch(WAIT)
    wait_ready(tmp_path)
    assert backend.poll(handle).state == "running"
    backend.stop(handle, 10.0)
    seen = backend.wait(handle, 60.0)
    assert (seen.exit_code, seen.failure_class) == (81, None)


def test_a_rank_that_ignores_the_term_is_killed_after_the_grace_time(
    backend: LocalBackend, launch: Launch, tmp_path: Path
) -> None:
    handle = launch(STUBBORN)
    wait_ready(tmp_path)
    begun = time.monotonic()
    backend.stop(handle, 0.5)
    seen = backend.wait(handle, 60.0)
    assert 0.4 < time.monotonic() - begun < 10
    assert [worker.exit_code for worker in seen.workers] == [-9, -9]


def test_one_rank_that_dies_ends_the_others_and_is_named(backend: LocalBackend, launch: Launch, tmp_path: Path) -> None:
    ready = f"'ready' in __import__('pathlib').Path({str(tmp_path / 'run' / 'logs' / 'rank-0.log')!r}).read_text()"
    dies = f"while not {ready}: pass\n    raise MemoryError('no more')"
    script = f"import os\nif os.environ['RANK'] == '1':\n    {dies}\n{WAIT}"
    seen = backend.wait(launch(script), 60.0)
    assert seen.state == "exited"
    assert (seen.exit_code, seen.failure_class) == (1, "out_of_memory")
    assert "rank 1 ended with exit code 1: MemoryError: no more" in seen.detail
    assert [worker.exit_code for worker in seen.workers] == [81, 1]


def test_a_rank_that_is_killed_is_told_from_one_that_crashed(
    backend: LocalBackend, launch: Launch, tmp_path: Path
) -> None:
    handle = launch(WAIT)
    wait_ready(tmp_path)
    victim = backend.poll(handle).workers[0].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    seen = backend.wait(handle, 60.0)
    assert seen.failure_class == "killed"
    assert "SIGKILL" in seen.detail


def test_the_completion_marker_is_believed_before_the_exit_code(
    backend: LocalBackend, launch: Launch, tmp_path: Path
) -> None:
    """A process may abort in teardown after its work is done; a marker of an earlier launch does not count."""
    marker = tmp_path / "run" / "result.json"
    body = {"outcome": "done", "exit_code": 0, "message": "", "failure_class": None}
    write = f"__import__('pathlib').Path({str(marker)!r}).write_text({json.dumps(body)!r})"
    seen = backend.wait(launch(f"import os\n{write}\nos.abort()", num_workers=1), 60.0)
    assert (seen.exit_code, seen.failure_class, seen.result) == (0, None, body)
    seen = backend.wait(launch("exit(3)", claim="c2"), 60.0)
    assert (seen.exit_code, seen.result) == (3, None)


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


def test_only_living_launches_with_the_tag_are_listed(backend: LocalBackend, launch: Launch, tmp_path: Path) -> None:
    backend.wait(launch("pass", claim="done", tags={"team": "x"}), 60.0)
    launch(WAIT, claim="lives", tags={"team": "x"})
    assert [handle["claim"] for handle in backend.list("team=x")] == ["lives"]
    assert [handle["claim"] for handle in backend.list("job=j1")] == ["lives"]
    assert backend.list("team=y") == []


def test_a_resize_ends_the_old_world_before_the_new_one_starts(
    backend: LocalBackend, launch: Launch, tmp_path: Path
) -> None:
    handle = launch(WAIT)
    wait_ready(tmp_path)
    spec = LaunchSpec("c2", "j1", "a2", [sys.executable, "-c", ENVIRONMENT], {}, 3, str(tmp_path / "run2"))
    after = backend.resize(handle, spec, 10.0)
    assert backend.poll(handle).exit_code == 81
    assert len(backend.wait(after, 60.0).workers) == 3
    with pytest.raises(BackendError, match="claim of its own"):
        backend.resize(after, spec, 1.0)


def test_a_command_that_does_not_exist_is_a_user_error(backend: LocalBackend, launch: Launch) -> None:
    seen = backend.wait(launch("", command=["/nowhere/python"]), 60.0)
    assert (seen.state, seen.exit_code, seen.failure_class) == ("exited", 127, "user_error")


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
    with pytest.raises(BackendError, match="known: local"):
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
