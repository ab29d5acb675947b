"""Activations that are computed again change nothing but memory and time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.trainer.paths import COUNTS
from tests.trainer.worlds import base_config, run_world, train, write_shards


def _counted(folder: Path) -> dict[str, Any]:
    """Way -> (passes of the first layer's attention, gradient norms, weights) of a run with dropout."""
    from trainer_client.finetune import build_trainer

    found = {}
    for parallel in ("ddp", "fsdp"):
        for recompute in ("none", "layers"):
            calls: list[int] = []

            def build(*args: Any, calls: list[int] = calls) -> Any:
                trainer = build_trainer(*args)
                attention = trainer.model.get_submodule("model.layers.0.self_attn")
                attention.register_forward_pre_hook(lambda *_: calls.append(1))
                return trainer

            way = f"{parallel} {recompute}"
            fields = {"steps": 2, "parallel": parallel, "recompute": recompute, "gradient_snapshot_dir": folder / way}
            seen = train(base_config(folder, **fields), dropout=0.2, build=build)
            norms = [columns["grad_norm"] for columns in seen["steps"].values()]
            found[way] = (len(calls), norms, seen["weights"])
    return found


def test_layers_that_are_computed_again_give_equal_bits_in_copies_and_in_slices(tmp_path: Path) -> None:
    write_shards(tmp_path, COUNTS)
    for rank in run_world(2, _counted, tmp_path, folder=tmp_path):
        for parallel in ("ddp", "fsdp"):
            (calls, norms, weights), (again, same, alike) = (rank[f"{parallel} {way}"] for way in ("none", "layers"))
            assert again == 2 * calls
            assert same == norms
            assert np.array_equal(alike, weights)
