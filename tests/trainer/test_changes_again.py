"""Two ranks: a shard that begins paused, and a snapshot from before shards were added, after which the journal adds them again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.worlds import base_config, joined_ledger, joined_losses, run_world, train, write_shards

pytestmark = pytest.mark.timeout(300)
RESUMED, ADDED, EXTENDED, LOST = 2, 5, 6, 7  # steps
DATA = b"".join(
    json.dumps({"id": f"new-{n}", "prompt": "say", "response": f"new {n}"}).encode() + b"\n" for n in range(4)
)
CHANGES: list[dict[str, Any]] = [
    {"id": "d1", "action": "resume_shard", "args": {"shard": "c"}, "not_before_step": RESUMED},
    {"id": "d2", "action": "add_shard", "args": {"shard": "d", "num_samples": 4}, "not_before_step": ADDED},
    {
        "id": "d3",
        "action": "add_shard",
        "args": {"shard": "b", "mode": "extend", "num_samples": 4},
        "not_before_step": EXTENDED,
    },
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], ...]:
    """(never stopped, lost before step 7, what resumed from the snapshot of step 4 without being told anything anew)."""
    folders = [tmp_path_factory.mktemp("whole"), tmp_path_factory.mktemp("lost")]
    for folder in folders:
        config = write_shards(folder, {"a": 17, "b": 9, "c": 23})
        config.write_text(config.read_text().replace("{id: c,", "{id: c, paused: true,"))
    whole = run(base_config(folders[0]), CHANGES, None, None, 0.0, DATA)
    lost = run(base_config(folders[1], snapshot_every=4), CHANGES, LOST, None, 0.0, DATA)
    for path in (folders[1] / "snapshots").glob(f"step-{LOST:06d}-*"):  # the machine went before it was durable
        shutil.rmtree(path)
    return whole, lost, run(base_config(folders[1], resume=True))


def run(config: Any, *args: Any) -> list[dict[str, Any]]:
    return run_world(2, train, config, *args, folder=Path(config.run_dir))


def test_a_shard_that_is_paused_in_the_config_gives_no_sample_until_it_is_resumed(runs: Any) -> None:
    steps = [row[0] for row in joined_ledger(runs[0]) if row[2] == "c"]
    assert min(steps) == RESUMED


def test_shards_added_after_the_snapshot_are_added_again_at_their_own_steps(runs: Any) -> None:
    whole, lost, rest = runs
    assert [rank["start"] for rank in rest] == [4, 4]
    assert rest[0]["acks"] == []
    ledger = joined_ledger(rest)
    assert min(row[0] for row in ledger if row[2] == "d") >= ADDED
    assert {row[3] for row in ledger if row[2] == "d"} <= {f"new-{n}" for n in range(4)}
    assert ledger == joined_ledger(whole, range(4, 8))
    assert joined_ledger(lost, range(4)) == joined_ledger(whole, range(4))
    expected = joined_losses(whole)
    for step, loss in joined_losses(rest).items():
        assert loss == pytest.approx(expected[step], rel=1e-5), f"step {step}"
