"""Copies and slices of a model, stopped in the first step, in an evaluation and in the last step, by other workers each time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.paths import Course, assert_equal_bits, assert_nothing_lost, run_paths, starts
from tests.trainer.test_elastic import assert_proved

pytestmark = pytest.mark.timeout(300)


def test_stops_in_the_first_step_an_evaluation_and_the_last_step_lose_nothing(tmp_path: Path) -> None:
    moments = ((0, 2), ("evaluation", 2), (3, 5))
    found = run_paths(
        tmp_path,
        {
            "ddp": Course((1,), (), {"parallel": "ddp"}),
            "fsdp": Course((1,), (), {"parallel": "fsdp"}),
            "ddp chain": Course((3, 2, 1, 2), moments, {"parallel": "ddp"}),
            "fsdp chain": Course((3, 2, 1, 2), moments, {"parallel": "fsdp"}),
        },
        fidelity="exact",
        steps=4,
        eval_every=2,
        eval_fraction=0.3,
    )
    for parallel in ("ddp", "fsdp"):
        (whole,), stages = found[parallel], found[f"{parallel} chain"]
        assert [step for step, _ in starts(stages)] == [0, 0, 2, 3]
        assert_nothing_lost(stages, whole)
        assert_equal_bits(stages, whole)
        assert_proved(stages)
        evaluations = [step for ranks in stages for step in ranks[0]["evaluations"]]
        assert evaluations == sorted(whole[0]["evaluations"])
