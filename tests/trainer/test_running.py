"""Scripts of one's own around a trainer, as the documentation shows them: preempted, resized, resumed."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.server import FakeServer
from tests.trainer.test_reporter import eventually
from tests.trainer.trlruns import write_forms, write_pairs
from tests.trainer.worlds import base_config, run_world, write_shards
from trainer_client.backends import LaunchSpec
from trainer_client.backends.local import LocalBackend

pytestmark = pytest.mark.timeout(300)

COUNTS = {"a": 17, "b": 9, "c": 5}
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
WRITE: dict[str, Any] = {"trainer": write_shards, "stream": write_shards, "sft": write_forms, "dpo": write_pairs}


def _tiny_model(folder: Path) -> str:
    from trainer_client.models import TinySpec, build_tiny

    texts = ["say red green blue amber white yes no " * 20]
    build_tiny(TinySpec.parse("tiny:60k"), texts, folder / "model", seed=0, seq_len=64)
    return str(folder / "model")


@pytest.mark.parametrize("example", list(WRITE))
def test_an_example_is_preempted_and_resumed_by_other_workers_and_reports_each_step_once(
    tmp_path: Path, example: str
) -> None:
    """Real processes: two workers, until one of them gets a real SIGTERM; then one, until it is told to leave for a resize."""
    config = WRITE[example](tmp_path, COUNTS)
    data = tmp_path / "data" / "a.jsonl" if example == "stream" else config
    (model,) = run_world(1, _tiny_model, tmp_path, folder=tmp_path)
    backend, lefts = LocalBackend(tmp_path / "root"), [0]
    command = [sys.executable, str(EXAMPLES / f"{example}.py"), model, str(data), "100000"]
    with FakeServer() as server:
        env = {"COUNTERFLOW_URL": server.url, "COUNTERFLOW_TOKEN": "cf_t", "PYTHONPATH": os.getcwd()}
        env["COUNTERFLOW_SNAPSHOT_DIR"] = str(tmp_path / "snapshots")
        for name, world in (("1", 2), ("2", 1)):
            handle = backend.launch(LaunchSpec(name, "j1", f"a{name}", command, env, world, str(tmp_path / name)))
            reached = lefts[-1] + 3
            eventually(lambda at=reached: any(row["step"] >= at for row in server.state.rows("steps")), 120.0)
            if world == 2:
                os.kill(backend.poll(handle).workers[-1].pid or 0, signal.SIGTERM)
            else:
                server.state.directives = [{"id": "d1", "action": "resize", "args": {"num_workers": 3}}]
            seen = backend.wait(handle, 60.0)
            assert (seen.exit_code, seen.failure_class) == (81 if world == 2 else 80, None)
            assert seen.result is not None
            lefts.append(seen.result["step"])
            totals = server.state.shard_totals()
            assert sorted({step for step, _ in totals}) == list(range(*lefts[-2:]))
            for step in range(*lefts[-2:]):
                assert sum(part[2] for (at, _), part in totals.items() if at == step) == 16
            server.state.reports.clear()
        first, second = server.state.named("start")
        assert (second["start_step"], second["world_size"]) == (lefts[1], 1)
        assert second["loaded_digest"] in [told.get("digest") for told in server.state.named("snapshots")]


def _run(config: Any, ending: str) -> dict[str, Any]:
    """A whole run by `run_trainer` that ends so, with the session of the environment."""
    from tests.trainer.trlruns import build_sft
    from trainer_client.running import run_trainer
    from trainer_client.session import open_session
    from trainer_client.sharddata import load_shard_config

    os.environ["COUNTERFLOW_RUN_DIR"] = str(config.run_dir)
    session = open_session(config.gradient_snapshot_dir)
    trainer = build_sft(config, session, load_shard_config(config.shard_config))
    micro_step = trainer.micro_step

    def noted(model: Any, batch: Any, micro: Any) -> Any:
        if (ending, batch.step, micro.index) == ("sigterm", 2, 1):
            os.kill(os.getpid(), signal.SIGTERM)
        if (ending, batch.step) == ("error", 4):
            raise RuntimeError("the disk of samples is gone")
        return micro_step(model, batch, micro)

    trainer.micro_step = noted
    code = run_trainer(trainer)
    result = json.loads((config.run_dir / "result.json").read_text())
    return {"code": code, "start": trainer.resumption.loaded.step if trainer.resumption else 0} | result


def test_a_run_ends_with_its_exit_code_and_a_word_whatever_ends_it(tmp_path: Path) -> None:
    write_forms(tmp_path, COUNTS)
    config = base_config(tmp_path, steps=6)
    (left,) = run_world(1, _run, config, "sigterm", folder=tmp_path)
    assert (left["code"], left["outcome"], left["step"]) == (81, "preempted", 2)
    assert len(list((tmp_path / "snapshots").glob("step-*"))) == 1
    (failed,) = run_world(1, _run, config, "error", folder=tmp_path)
    assert (failed["code"], failed["outcome"], failed["start"]) == (1, "failed", 2)
    assert "the disk of samples is gone" in failed["message"]
    (done,) = run_world(1, _run, config, "end", folder=tmp_path)
    assert (done["code"], done["outcome"], done["start"], done["step"]) == (0, "done", 2, 6)


def test_another_number_of_steps_than_that_of_the_snapshot_is_refused(tmp_path: Path) -> None:
    """Rate and end of the run follow from it; a script has no flags that would say so."""
    write_forms(tmp_path, COUNTS)
    run_world(1, _run, base_config(tmp_path, steps=4), "sigterm", folder=tmp_path)
    (snapshot,) = (tmp_path / "snapshots").glob("step-*")
    (longer,) = run_world(1, _run, base_config(tmp_path, steps=12), "end", folder=tmp_path)
    assert (longer["code"], longer["failure_class"]) == (64, "user_error")
    assert "12: the snapshot is of a run planned for 4" in longer["message"]
    assert snapshot.is_dir()


def test_a_snapshot_that_the_scheduler_refuses_is_not_gone_on_with(tmp_path: Path) -> None:
    write_forms(tmp_path, COUNTS)
    config = base_config(tmp_path, steps=4)
    run_world(1, _run, config, "sigterm", folder=tmp_path)
    (snapshot,) = (tmp_path / "snapshots").glob("step-*")
    (done,) = run_world(1, _run_refusing, config, snapshot.name, folder=tmp_path)
    assert (done["code"], done["start"]) == (0, 0)
    assert not snapshot.exists()


def _run_refusing(config: Any, name: str) -> dict[str, Any]:
    os.environ["COUNTERFLOW_REFUSE_SNAPSHOTS"] = f"{name},step-none"
    return _run(config, "end")
