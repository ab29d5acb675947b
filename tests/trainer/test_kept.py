"""A resume with other flags goes on as the run was begun, and says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.trainer.paths import COUNTS
from tests.trainer.worlds import base_config, run_world, train_each, write_shards

OTHERS = {"global_batch": 12, "seed": 5, "lr": 1e-3, "weight_decay": 0.1, "weights": {"a": 2.0, "b": 3.0}}
ORDERS = [
    {"id": "d1", "action": "set_weights", "args": {"weights": {"b": 4.0}}, "not_before_step": 1},
    {"id": "d2", "action": "set_training", "args": {"lr_factor": 0.3}, "not_before_step": 1},
]


def test_flags_of_a_resume_that_are_kept_from_the_snapshot_are_named(tmp_path: Path) -> None:
    """Data, dropout, rate and weights are those of the run that was never stopped; what a directive has changed is not named."""
    write_shards(tmp_path, COUNTS)
    same = {"steps": 5, "gradient_snapshot_dir": tmp_path / "parts"}
    whole = base_config(tmp_path, steps=5, gradient_snapshot_dir=tmp_path / "whole")
    cases = [
        {"config": whole, "directives": ORDERS, "dropout": 0.1},
        {"config": base_config(tmp_path, **same), "directives": ORDERS, "dropout": 0.1, "leave_at": 3},
        {"config": base_config(tmp_path, **same, resume=True), "dropout": 0.1, "leave_at": 4},
        {"config": base_config(tmp_path, **same | OTHERS, resume=True), "dropout": 0.1},
    ]
    ((uninterrupted, _, alike, resumed),) = run_world(1, train_each, cases, folder=tmp_path)
    assert (resumed["start"], resumed["code"]) == (4, 0)
    assert not [text for _, text in alike["said"] if "kept from the snapshot" in text]
    ((level, said),) = [(level, text) for level, text in resumed["said"] if "kept from the snapshot" in text]
    assert level == "warning"
    for words in ("global_batch 6 (given: 12)", "seed 0 (given: 5)", "lr 0.003 (given: 0.001)"):
        assert words in said
    assert "weight_decay 0 (given: 0.1)" in said
    assert "weight of a 1 (given: 2);" in said
    assert np.array_equal(resumed["weights"], uninterrupted["weights"])
