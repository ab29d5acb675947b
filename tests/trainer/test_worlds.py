"""Larger worlds, up to eight workers: as many as before go on bit by bit, another number up to rounding; fp32 and bf16.

Under `exact` a model in slices goes on bit by bit with any number.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.paths import (
    COUNTS,
    Course,
    assert_equal_bits,
    assert_nothing_lost,
    run_paths,
    samples_by_shard,
    starts,
)
from tests.trainer.test_elastic import assert_proved
from tests.trainer.worlds import base_config, joined_ledger, joined_losses, run_world, train_each, write_shards

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]
NEXT = {5: 8, 6: 7, 7: 5, 8: 6}  # who goes on where another number does
TYPES = {5: ("fp32", "bf16"), 6: ("fp32",), 7: ("fp32", "bf16"), 8: ("fp32",)}
BF16_BOUND = 1e-3  # of the next loss: some weights are rounded the other way and differ by 2**-8 of themselves
Ranks = list[dict[str, Any]]


def _case(folder: Path, name: str, dtype: str, **more: Any) -> dict[str, Any]:
    """A run in `folder/name`. 19 micro-batches divide by none of the worlds."""
    if not (folder / name).exists():
        write_shards(folder / name, COUNTS)
    fields = {"steps": 3, "global_batch": 19, "micro_batch": 1, "dtype": dtype, "resume": more.pop("resume", False)}
    return {"config": base_config(folder / name, **fields), "dropout": 0.1} | more


def _run(world: int, cases: dict[str, dict[str, Any]], folder: Path) -> dict[str, Ranks]:
    """The named runs, one after the other in the same processes."""
    found = run_world(world, train_each, list(cases.values()), folder=folder)
    return {name: [rank[at] for rank in found] for at, name in enumerate(cases)}


def assert_near(stages: list[Ranks], whole: Ranks, bound: float) -> None:
    """The same samples, each once, and every loss within `bound`."""
    assert sorted(row for ranks in stages for row in joined_ledger(ranks)) == joined_ledger(whole)
    assert samples_by_shard(stages) == samples_by_shard([whole])
    found = {step: loss for ranks in stages for step, loss in joined_losses(ranks).items()}
    assert found == {step: pytest.approx(loss, rel=bound) for step, loss in joined_losses(whole).items()}


def test_a_step_put_down_by_many_workers_goes_on_with_as_many_or_with_others(tmp_path: Path) -> None:
    one = _run(1, {"one": _case(tmp_path, "one", "fp32")}, tmp_path)["one"]
    first: dict[str, Ranks] = {}
    for world, dtypes in TYPES.items():
        cases = {f"{world}-{d}-whole": _case(tmp_path, f"{world}-{d}-whole", d) for d in dtypes}
        cases |= {f"{world}-{d}-same": _case(tmp_path, f"{world}-{d}-same", d, leave_at=(1, 0)) for d in dtypes}
        first |= _run(world, cases, tmp_path)
        for d in dtypes:
            shutil.copytree(tmp_path / f"{world}-{d}-same", tmp_path / f"{world}-{d}-other")
    then: dict[str, Ranks] = {}
    for world in NEXT:
        names = [f"{world}-{d}-same" for d in TYPES[world]]
        names += [f"{w}-{d}-other" for w, v in NEXT.items() if v == world for d in TYPES[w]]
        then |= _run(world, {n: _case(tmp_path, n, n.split("-")[1], resume=True) for n in names}, tmp_path)

    for world, dtypes in TYPES.items():
        for d in dtypes:
            whole, left = first[f"{world}-{d}-whole"], first[f"{world}-{d}-same"]
            same, other = then[f"{world}-{d}-same"], then[f"{world}-{d}-other"]
            assert same[0]["start"] == other[0]["start"] == 1
            assert same[0]["start_micro"] == other[0]["start_micro"] >= world
            assert_near([left, same], whole, 0.0)
            assert_equal_bits([left, same], whole)
            if d == "fp32":
                assert_nothing_lost([left, other], one)
            else:
                assert_near([left, other], whole, BF16_BOUND)


def test_a_model_in_slices_goes_on_bit_by_bit_with_five_to_eight_workers(tmp_path: Path) -> None:
    """Two stops inside one step, one in the last; full in fp32, adapters in bf16; 29 micro-batches divide by none of the worlds."""
    worlds, moments, lora = (8, 5, 7, 6), ((1, 0), (1, 16), (2, 0)), {"lora": 4, "dtype": "bf16"}
    found = run_paths(
        tmp_path,
        {
            "one": Course((1,)),
            "chain": Course(worlds, moments),
            "lora_one": Course((1,), (), lora),
            "lora_chain": Course(worlds, moments, lora),
        },
        global_batch=29,
        parallel="fsdp",
    )
    for name, one in (("chain", "one"), ("lora_chain", "lora_one")):
        assert starts(found[name]) == [(0, 0), (1, 16), (1, 26), (2, 14)]
        assert_nothing_lost(found[name], found[one][0])
        assert_equal_bits(found[name], found[one][0])
        assert_proved(found[name])
