"""Models in slices: put down at any micro-batch, taken up by any number of workers, nothing lost and all proved."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer.paths import Course, assert_equal_bits, assert_nothing_lost, run_paths, starts
from tests.trainer.test_elastic import assert_proved

pytestmark = pytest.mark.timeout(300)

FSDP = {"parallel": "fsdp"}


def test_a_model_in_slices_goes_on_with_other_workers_and_loses_nothing(tmp_path: Path) -> None:
    found = run_paths(
        tmp_path,
        {
            "copies": Course((2,)),
            "three": Course((3,), (), FSDP),
            "same": Course((3, 3), ((1, 0),), FSDP),
            "chain": Course((2, 3, 1, 2), ((1, 0), (1, 13), (2, 1)), FSDP),
        },
    )
    (copies,), (three,) = found["copies"], found["three"]
    assert_nothing_lost([three], copies)
    assert starts(found["same"]) == [(0, 0), (1, 6)]
    assert_nothing_lost(found["same"], three, relative=0.0)
    assert_equal_bits(found["same"], three)
    assert_nothing_lost(found["chain"], copies)
    for stages in found.values():
        assert_proved(stages)
