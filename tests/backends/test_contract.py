"""What every backend promises, on every backend that can be had here, with real processes (small scripts, no torch)."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.backends.bench import STUBBORN, WAIT, Bench
from trainer_client.backends import BackendError

PLACE = """
import os
names = "RANK WORLD_SIZE COUNTERFLOW_ATTEMPT COUNTERFLOW_RUN_DIR MINE".split()
print(*(os.environ[name] for name in names), os.environ["MASTER_ADDR"] + ":" + os.environ["MASTER_PORT"])
"""


def test_ranks_get_their_place_and_their_output_is_kept(bench: Bench) -> None:
    seen = bench.over(bench.launch(PLACE, num_workers=3, env={"MINE": "a b"}))
    assert (seen.state, seen.exit_code, seen.failure_class) == ("exited", 0, None)
    assert [(worker.rank, worker.alive, worker.exit_code) for worker in map(_worker, seen.workers)] == [
        (rank, False, 0) for rank in range(3)
    ]
    said = [bench.log(rank).split() for rank in range(3)]
    run_dir = str(bench.folder / "run")
    assert [words[:-1] for words in said] == [[str(rank), "3", "a1", run_dir, "a", "b"] for rank in range(3)]
    assert len({words[-1] for words in said}) == 1, "all ranks look for rank 0 at the same address"


def test_one_claim_starts_one_launch_however_many_ask(bench: Bench) -> None:
    handles: list[dict[str, Any]] = []
    askers = [threading.Thread(target=lambda: handles.append(bench.launch(WAIT))) for _ in range(4)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert len({json.dumps(handle, sort_keys=True) for handle in handles}) == 1
    bench.ready()
    assert bench.launch(WAIT) == handles[0]
    assert len(bench.backend.list("job=j1")) == 1
    assert bench.log(0).count("ready") == 1


def test_a_stop_is_a_term_that_ranks_may_answer(bench: Bench) -> None:
    handle = bench.launch(WAIT)
    bench.ready()
    seen = bench.seen(handle, "running")
    assert [(worker.rank, worker.alive) for worker in seen.workers] == [(0, True), (1, True)]
    bench.backend.stop(handle, 20.0)
    seen = bench.over(handle)
    assert (seen.state, seen.exit_code, seen.failure_class) == ("exited", 81, None)
    bench.backend.stop(handle, 1.0)  # a stop that comes too late does no harm


def test_a_rank_that_ignores_the_term_is_killed_after_the_grace_time(bench: Bench) -> None:
    handle = bench.launch(STUBBORN)
    bench.ready()
    begun = time.monotonic()
    bench.backend.stop(handle, 1.0)
    seen = bench.over(handle)
    assert time.monotonic() - begun > 0.9
    assert seen.failure_class == "killed"
    assert not any(worker["alive"] for worker in seen.workers)  # type: ignore[index]


def test_one_rank_that_dies_ends_the_others_and_is_named(bench: Bench) -> None:
    other = str(bench.folder / "run" / "logs" / "rank-0.log")
    dies = f"""
import os, pathlib, time
if os.environ["RANK"] == "1":
    other = pathlib.Path({other!r})
    while not other.exists() or "ready" not in other.read_text(): time.sleep(0.05)
    raise MemoryError("no more")
"""
    script = dies + WAIT
    seen = bench.over(bench.launch(script))
    assert (seen.state, seen.exit_code, seen.failure_class) == ("exited", 1, "out_of_memory")
    assert "rank 1 ended with exit code 1: MemoryError: no more" in seen.detail
    assert [worker.exit_code for worker in map(_worker, seen.workers)] == [81, 1]


def test_a_killed_worker_is_seen(bench: Bench) -> None:
    handle = bench.launch(WAIT)
    bench.ready()
    victim = bench.seen(handle, "running").workers[1].pid
    assert victim is not None
    os.kill(victim, signal.SIGKILL)
    seen = bench.over(handle)
    assert seen.failure_class == "killed"
    assert "rank 1 was ended by SIGKILL" in seen.detail


def test_the_completion_marker_is_believed_before_the_exit_code(bench: Bench) -> None:
    """A process may abort in teardown after its work is done."""
    marker = bench.folder / "run" / "result.json"
    marker.parent.mkdir()
    marker.write_text(json.dumps({"outcome": "done", "exit_code": 0, "message": "of an earlier launch"}))
    os.utime(marker, (1, 1))
    body = {"outcome": "done", "exit_code": 0, "message": "", "failure_class": None}
    write = f"__import__('pathlib').Path({str(marker)!r}).write_text({json.dumps(body)!r})"
    seen = bench.over(bench.launch(f"import os\n{write}\nos.abort()", num_workers=1))
    assert (seen.exit_code, seen.failure_class, seen.result) == (0, None, body)


def test_a_marker_of_an_earlier_launch_does_not_count(bench: Bench) -> None:
    marker = bench.folder / "run" / "result.json"
    marker.parent.mkdir()
    marker.write_text(json.dumps({"outcome": "done", "exit_code": 0, "message": "of an earlier launch"}))
    seen = bench.over(bench.launch("exit(3)", num_workers=1))
    assert (seen.exit_code, seen.result) == (3, None)


def test_only_living_launches_with_the_tag_are_listed(bench: Bench) -> None:
    bench.over(bench.launch("pass", claim="done", tags={"team": "x", "note": "a=b|c d"}, num_workers=1))
    handle = bench.launch(WAIT, claim="lives", tags={"team": "x", "note": "a=b|c d"}, num_workers=1)
    assert [found["claim"] for found in bench.backend.list("team=x")] == [bench.claim("lives")]
    assert bench.backend.list("note=a=b|c d") == [handle]
    assert [found["claim"] for found in bench.backend.list("attempt=a1")] == [bench.claim("lives")]
    assert bench.backend.list("team=y") == []


def test_a_resize_ends_the_old_world_before_the_new_one_starts(bench: Bench) -> None:
    handle = bench.launch(WAIT)
    bench.ready()
    spec = bench.spec(
        PLACE, claim="c2", attempt="a2", num_workers=3, env={"MINE": ""}, run_dir=str(bench.folder / "run2")
    )
    after = bench.keep(bench.backend.resize(handle, spec, 20.0))
    assert bench.backend.poll(handle).exit_code == 81
    assert [worker.exit_code for worker in map(_worker, bench.over(after).workers)] == [0, 0, 0]
    with pytest.raises(BackendError, match="claim of its own") as refused:
        bench.backend.resize(after, spec, 1.0)
    assert refused.value.permanent


def test_a_command_that_does_not_exist_is_a_user_error(bench: Bench) -> None:
    seen = bench.over(bench.launch("", command=["/nowhere/python"], num_workers=1))
    assert (seen.state, seen.exit_code, seen.failure_class) == ("exited", 127, "user_error")


def test_a_run_directory_that_cannot_be_written_may_be_mended(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BackendError, match="cannot launch") as refused:
        bench.launch(WAIT, run_dir=str(tmp_path / "file" / "run"))
    assert not refused.value.permanent


def test_offers_are_priced(bench: Bench) -> None:
    (priced,) = bench.backend.quotes([{"offer": "any"}])
    assert priced["offer"] == "any"
    assert priced["price_usd_per_hour"] >= 0
    assert priced["availability"] >= 1


def _worker(raw: Any) -> Any:
    """Observations of `over` come from JSON, where a worker is a mapping."""
    from trainer_client.backends import WorkerObservation

    return WorkerObservation(**raw) if isinstance(raw, dict) else raw
