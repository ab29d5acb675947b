"""What a trainer says that it does while no step is to be expected, so that nobody takes it for hung."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.trainer.paths import COUNTS
from tests.trainer.worlds import base_config, run_world, write_shards

pytestmark = pytest.mark.timeout(300)


def _phases(folder: Path, parallel: str) -> tuple[dict[str, set[str | None]], list[float]]:
    """What the reporter of a real run says at several places of it, and what each of its saves took."""
    from trainer_client.finetune import build_trainer
    from trainer_client.journal import Journal
    from trainer_client.running import train_through
    from trainer_client.session import Session, SessionConfig
    from trainer_client.sharddata import load_shard_config

    fields = {"steps": 3, "eval_every": 2, "eval_fraction": 0.4, "snapshot_every": 1, "export_every": 2}
    config = base_config(folder, **fields, parallel=parallel)
    own = SessionConfig(config.run_dir, attempt="a1", offline=True)
    session = Session(own, journal=Journal(config.gradient_snapshot_dir / "journal"))
    trainer: Any = build_trainer(config, session, load_shard_config(config.shard_config))
    seen: dict[str, set[str | None]] = {}
    saves_s: list[float] = []
    session.report_snapshot = lambda **told: saves_s.extend([told["save_s"]] if told["status"] == "verified" else [])  # type: ignore[method-assign]

    def noted(place: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            assert session.reporter is not None
            seen.setdefault(place, set()).add(session.reporter.busy)
            return function(*args, **kwargs)

        return call

    trainer.micro_step = noted("step", trainer.micro_step)
    trainer.saver.store.write = noted("write", trainer.saver.store.write)
    trainer.exporter.export = noted("export", trainer.exporter.export)
    trainer.source.shards.held_out = noted("evaluation", trainer.source.shards.held_out)
    assert train_through(trainer) == 0
    return seen, saves_s


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_trainer_says_that_it_evaluates_saves_and_exports_and_nothing_in_a_step(folder: Path, parallel: str) -> None:
    for rank, (seen, saves_s) in enumerate(run_world(2, _phases, folder, parallel, folder=folder)):
        assert seen["step"] == {""}
        assert "evaluation" in seen["evaluation"]
        assert seen.get("write", {"save"}) == {"save"}
        assert seen.get("export", {"export"}) == {"export"}
        assert len(saves_s) == (3 if rank == 0 else 0)
        assert all(0 < save_s < 60 for save_s in saves_s)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, COUNTS)
    return tmp_path
