"""Models in slices: put down at any micro-batch, taken up by any number of workers, nothing lost and all proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.paths import Course, assert_equal_bits, assert_nothing_lost, run_paths, starts
from tests.trainer.test_elastic import assert_proved

pytestmark = pytest.mark.timeout(300)

FSDP, DDP = {"parallel": "fsdp"}, {"parallel": "ddp"}
LORA, FEW = {"lora": 4}, {"global_batch": 5, "micro_batch": 2}


def test_a_model_in_slices_goes_on_with_other_workers_and_loses_nothing(tmp_path: Path) -> None:
    """Inside a step and between two; full, LoRA and bf16; a worker without a micro-batch; from copies and back to copies."""
    found = run_paths(
        tmp_path,
        {
            "copies": Course((2,)),
            "three": Course((3,), (), FSDP),
            "same": Course((3, 3), ((1, 0),), FSDP),
            "chain": Course((2, 3, 1, 2), ((1, 0), (1, 7), (2, 1)), FSDP),
            "halved": Course((4, 2), (2,), FSDP),
            "mixed": Course((2, 3, 2), ((1, 0), (2, 0)), {}, (DDP, FSDP, DDP)),
            "few_copies": Course((2,), (), FEW),
            "few": Course((4, 2), ((1, 0),), FEW | FSDP),
            "lora_copies": Course((2,), (), LORA),
            "lora": Course((2, 3), ((1, 0),), LORA | FSDP),
            "bf16": Course((3,), (), FSDP | {"dtype": "bf16"}),
            "bf16_same": Course((3, 3), ((1, 0),), FSDP | {"dtype": "bf16"}),
            "bf16_lora": Course((2, 3), ((1, 0),), FSDP | LORA | {"dtype": "bf16"}),
        },
        global_batch=8,
    )
    (copies,), (three,), (bf16,) = found["copies"], found["three"], found["bf16"]
    assert_nothing_lost([three], copies)
    assert starts(found["same"]) == [(0, 0), (1, 6)]
    for name, whole in (("same", three), ("bf16_same", bf16)):
        assert_nothing_lost(found[name], whole, relative=0.0)
        assert_equal_bits(found[name], whole)
    assert starts(found["chain"]) == [(0, 0), (1, 4), (2, 0), (2, 2)]
    for name in ("chain", "halved", "mixed"):
        assert_nothing_lost(found[name], copies)
    assert_nothing_lost(found["few"], found["few_copies"][0])
    assert_nothing_lost(found["lora"], found["lora_copies"][0])
    for stages in found.values():
        assert_proved(stages)
