"""`python -m trainer_client.launch_finetune` as a user and as a backend start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trainer.server import FakeServer
from tests.trainer.test_reporter import eventually
from tests.trainer.worlds import write_shards
from trainer_client.backends import LaunchSpec
from trainer_client.backends.local import LocalBackend
from trainer_client.finetune_config import ConfigError, parse
from trainer_client.launch_finetune import main

pytestmark = pytest.mark.timeout(300)


def flags(folder: Path, *more: str) -> list[str]:
    return [
        *("--model", "tiny:60k", "--shard_config", str(folder / "shard_config.yaml"), "--seq_len", "48"),
        *("--gradient_snapshot_dir", str(folder / "snapshots"), "--global_batch", "6", "--micro_batch", "2"),
        *more,
    ]


@pytest.mark.slow
def test_a_job_under_the_local_backend_reports_is_preempted_and_resumes_with_another_size(tmp_path: Path) -> None:
    """Two workers, told to leave in mid-run by the backend; the next attempt goes on with one, by hand, to the end."""
    write_shards(tmp_path, {"a": 17, "b": 9, "c": 23})
    backend = LocalBackend(tmp_path / "root")
    with FakeServer() as server:
        command = [
            sys.executable,
            "-m",
            "trainer_client.launch_finetune",
            *flags(tmp_path, "--steps", "2000", "--resume"),
        ]
        env = {"COUNTERFLOW_URL": server.url, "COUNTERFLOW_TOKEN": "cf_t", "PYTHONPATH": os.getcwd()}
        handle = backend.launch(LaunchSpec("c1", "j1", "a1", command, env, 2, str(tmp_path / "run1")))
        eventually(lambda: {row["worker"] for row in server.state.rows("steps")} == {0, 1}, 120.0)
        os.kill(backend.poll(handle).workers[1].pid or 0, signal.SIGTERM)  # a notice may reach one worker only
        seen = backend.wait(handle, 60.0)
        assert (seen.exit_code, seen.failure_class) == (81, None)
        assert seen.result is not None
        left = seen.result["step"]
        totals = server.state.shard_totals()
        assert sorted({step for step, _ in totals}) == list(range(left))
        assert all(sum(part[2] for (at, _), part in totals.items() if at == step) == 6 for step in range(left))
        assert [body["status"] for body in server.state.named("snapshots")] == ["verified"]
        rest = flags(tmp_path, "--steps", "2000", "--resume", "--max_gpus", "1", "--run_dir", str(tmp_path / "run2"))
        rest += ["--scheduler_endpoint", server.url]
        server.state.directives = [{"id": "d1", "action": "stop", "args": {}, "not_before_step": left + 5}]
        environment = os.environ | env | {"COUNTERFLOW_ATTEMPT": "a2", "COUNTERFLOW_JOB": "j1"}
        server.state.reports.clear()
        done = subprocess.run(
            [sys.executable, "-m", "trainer_client.launch_finetune", *rest], env=environment, check=False
        )
        assert done.returncode == 82
        starts = server.state.named("start")
        assert [body["start_step"] for body in starts] == [0, left]
        assert starts[1]["loaded_digest"] == server.state.named("snapshots")[0]["digest"]
        assert {row["step"] for row in server.state.rows("steps")} == set(range(left, left + 5))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--lr", "-1"], "--lr must lie"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--eval_every", "5"], "needs --eval_fraction"),
        (["--spot_threshold", "7"], "--spot_threshold must lie"),
        (["--weights", "[1]"], "JSON object"),
        (["--colour", "red"], "unrecognized arguments"),
        (["--shard_config", "/nowhere.yaml"], "is not a file"),
    ],
)
def test_a_wrong_flag_ends_with_64_and_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
) -> None:
    write_shards(tmp_path, {"a": 3})
    assert main(flags(tmp_path, *more)) == 64
    assert words in capsys.readouterr().err


def test_paths_become_absolute_and_the_run_directory_has_a_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shards(tmp_path, {"a": 3})
    monkeypatch.chdir(tmp_path)
    config = parse(["--model", "m", "--shard_config", "shard_config.yaml", "--gradient_snapshot_dir", "s"])
    assert config.run_dir == tmp_path / "s" / "run"
    assert json.loads(json.dumps(config.public()))["shard_config"] == str(tmp_path / "shard_config.yaml")
    with pytest.raises(ConfigError, match="required"):
        parse([])
