"""Models in slices: put down at any micro-batch, taken up by any number of workers, nothing lost and all proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.paths import Course, assert_equal_bits, assert_nothing_lost, run_paths, starts
from tests.trainer.test_elastic import assert_proved

pytestmark = pytest.mark.timeout(300)

FSDP, DDP = {"parallel": "fsdp"}, {"parallel": "ddp"}
LORA, FEW, BF16 = {"lora": 4}, {"global_batch": 5, "micro_batch": 2}, {"dtype": "bf16"}
EXACT, SAME_WORLD = {"fidelity": "exact"}, {"fidelity": "same_world"}


def test_a_model_in_slices_goes_on_with_other_workers_and_loses_nothing(tmp_path: Path) -> None:
    """Inside a step and between two; full, LoRA and bf16; a worker without a micro-batch; from copies and back to copies.

    The bits are those of one worker, which has a copy of the model, whatever the worlds; under `same_world` those of an equal
    world. A step that was begun under the other fidelity ends under it.
    """
    found = run_paths(
        tmp_path,
        {
            "one": Course((1,), (), FSDP),
            "chain": Course((2, 3, 1, 2), ((1, 0), (1, 7), (2, 1)), FSDP),
            "halved": Course((4, 2), (2,), FSDP),
            "few_one": Course((1,), (), FEW | FSDP),
            "few": Course((4, 2), ((1, 0),), FEW | FSDP),
            "lora_one": Course((1,), (), LORA | FSDP),
            "lora": Course((2, 3), ((1, 0),), LORA | FSDP),
            "bf16_one": Course((1,), (), BF16 | FSDP),
            "bf16": Course((3, 2), ((1, 0),), BF16 | FSDP),
            "bf16_lora": Course((2, 3), ((1, 0),), FSDP | LORA | BF16),
            "copies": Course((2,)),
            "mixed": Course((2, 3, 2), ((1, 0), (2, 0)), {}, (DDP, FSDP, DDP)),
            "three": Course((3,), (), FSDP | SAME_WORLD),
            "same": Course((3, 3), ((1, 0),), FSDP | SAME_WORLD),
            "other": Course((4, 2), ((1, 0),), FSDP | SAME_WORLD),
            "to_exact": Course((2, 3), ((1, 0),), FSDP, (SAME_WORLD, EXACT)),
            "from_exact": Course((2, 3), ((1, 0),), FSDP, (EXACT, SAME_WORLD)),
        },
        global_batch=8,
    )
    for name, one in (
        ("chain", "one"),
        ("halved", "one"),
        ("few", "few_one"),
        ("lora", "lora_one"),
        ("bf16", "bf16_one"),
    ):
        assert_nothing_lost(found[name], found[one][0])
        assert_equal_bits(found[name], found[one][0])
    assert starts(found["chain"]) == [(0, 0), (1, 4), (2, 0), (2, 2)]
    assert starts(found["same"]) == [(0, 0), (1, 6)]
    (copies,), (three,) = found["copies"], found["three"]
    assert_nothing_lost(found["same"], three, relative=0.0)
    assert_equal_bits(found["same"], three)
    for name in ("one", "mixed", "three", "other", "to_exact", "from_exact"):
        assert_nothing_lost(found[name], copies)
    for stages in found.values():
        assert_proved(stages)


def test_slices_that_go_on_with_what_copies_saved_end_with_the_same_bits_in_any_world(tmp_path: Path) -> None:
    """Copies use a fused optimizer, which their snapshot says, and which rounds the ends of a slice otherwise."""
    ways = {f"in {world}": Course((2, world), (1,), {}, (DDP, FSDP)) for world in (1, 2, 3)}
    found = run_paths(tmp_path, ways, global_batch=4, steps=40, lr=1e-2)
    for world in (2, 3):
        assert_equal_bits(found[f"in {world}"][1:], found["in 1"][1])
