"""Resizes and preemptions at any micro-batch, with real processes: nothing is lost, repeated or counted twice."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.paths import Course, assert_equal_bits, assert_nothing_lost, run_paths, starts
from tests.trainer.walk import misses, undisturbed, walk

pytestmark = pytest.mark.timeout(300)


def test_a_step_that_is_put_down_goes_on_with_other_workers_and_loses_nothing(tmp_path: Path) -> None:
    """A3, B1: two stops in one step and one in the last; in the first step; with LoRA; with another fidelity from then on; and
    bit by bit with equal worlds."""
    found = run_paths(
        tmp_path,
        {
            "one": Course((1,)),
            "three": Course((3,)),
            "same": Course((3, 3), ((1, 0),)),
            "twice": Course((2, 3, 1, 3), ((1, 0), (1, 13), (2, 1))),
            "first": Course((1, 2), ((0, 5),)),
            "lora": Course((1,), (), {"lora": 4}),
            "lora_resized": Course((2, 3), ((1, 0),), {"lora": 4}),
            "to_exact": Course((3, 2), ((1, 0),), {}, ({}, {"fidelity": "exact"})),
            "from_exact": Course((3, 2), ((1, 0),), {}, ({"fidelity": "exact"}, {})),
        },
        fidelity="same_world",
    )
    (one,), (three,), (lora,) = found["one"], found["three"], found["lora"]
    assert starts(found["same"]) == [(0, 0), (1, 6)]
    assert_nothing_lost(found["same"], three, relative=0.0)
    assert_equal_bits(found["same"], three)
    assert starts(found["twice"]) == [(0, 0), (1, 4), (2, 0), (2, 2)]
    assert_nothing_lost(found["twice"], one)
    assert starts(found["first"]) == [(0, 0), (0, 6)]
    assert_nothing_lost(found["first"], one)
    assert starts(found["lora_resized"]) == [(0, 0), (1, 4)]
    assert_nothing_lost(found["lora_resized"], lora)
    for name, begun in (("to_exact", "same_world"), ("from_exact", "exact")):
        assert_nothing_lost(found[name], one)
        assert any(f"begun under --fidelity {begun} and ends under it" in text for _, text in found[name][1][0]["said"])
    for stages in found.values():
        assert_proved(stages)


def assert_proved(stages: list[list[dict[str, Any]]]) -> None:
    """B2: each resumed stage held, on every rank, the parameters, moments, gradients and cursor that were saved."""
    for before, after in itertools.pairwise(stages):
        saved = [told for told in before[0]["snapshots"] if told["status"] == "verified"][-1]
        for rank in after:
            assert rank["hello"]["loaded_digest"] == saved["digest"]
            assert rank["hello"]["resumed_from"] == saved["snapshot"]
        assert set(after[0]["hello"]["loaded_parts"]) == {"parameters", "moments", "gradients", "schedule", "cursor"}


def test_exact_mode_gives_equal_bits_for_any_sequence_of_worlds(tmp_path: Path) -> None:
    """Clipping is on; worlds that divide nothing; two stops each inside two steps; LoRA and bf16 too."""
    wide = {"global_batch": 21, "steps": 3}
    found = run_paths(
        tmp_path,
        {
            "one": Course((1,), (), wide),
            "five": Course((5,), (), wide),
            "chain": Course((3, 7, 2, 5, 1), ((0, 0), (0, 2), (1, 0), (1, 2)), wide),
            "lora": Course((2,), (), {"lora": 4}),
            "lora_chain": Course((3, 1), ((1, 0),), {"lora": 4}),
            "bf16": Course((1,), (), {"dtype": "bf16"}),
            "bf16_chain": Course((2, 3), ((1, 0),), {"dtype": "bf16"}),
        },
        fidelity="exact",
    )
    (one,), (five,) = found["one"], found["five"]
    assert_equal_bits([five], one)
    assert starts(found["chain"]) == [(0, 0), (0, 6), (0, 20), (1, 4), (1, 14)]
    for name, whole in (("chain", one), ("lora_chain", found["lora"][0]), ("bf16_chain", found["bf16"][0])):
        assert_nothing_lost(found[name], whole)
        assert_equal_bits(found[name], whole)
        assert_proved(found[name])


@pytest.mark.parametrize(
    ("name", "seed", "num_events"), [("ddp", 6, 5), ("fsdp lora bf16", 6, 3), ("loop same_world", 6, 4)]
)
def test_a_random_walk_of_resizes_preemptions_and_kills_ends_as_if_nothing_had_been(
    tmp_path: Path, name: str, seed: int, num_events: int
) -> None:
    """`make bench-elastic BENCH_ARGS=--walks` walks 50 events in each mode."""
    found = walk(tmp_path / "walk", name, seed=seed, num_events=num_events, max_world=3, steps=num_events + 2)
    told = found.against(undisturbed(tmp_path / "whole", name, num_events + 2))
    assert told["kills"] > 0
    assert misses(name, told) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_walk_of_fifty_events_with_kills_in_saves_evaluations_and_loads_ends_as_if_nothing_had_been(
    tmp_path: Path,
) -> None:
    found = walk(tmp_path / "walk", "evaluated", seed=1, num_events=50, max_world=4, steps=90)
    told = found.against(undisturbed(tmp_path / "whole", "evaluated", 90))
    assert told["events"] == 50
    assert set(told["killed_during"]) == {"micro-batch", "save", "evaluation", "load"}
    assert misses("evaluated", told) == []
