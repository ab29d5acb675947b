"""Data as it comes in practice: shuffled streams, data that changes between two attempts, and data that cannot be resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.loopruns import rows, train_loop
from tests.trainer.worlds import base_config, joined_ledger, run_world, train_each, write_shards
from trainer_client.indexed import IndexedSource

pytestmark = pytest.mark.timeout(300)

FIELDS: dict[str, Any] = {"steps": 6, "global_batch": 14, "micro_batch": 2, "lr": 3e-2}


def _streamed(config: Any, leave_at: Any, seed: int | None = 5) -> dict[str, Any]:
    """A run over two interleaved sources behind a shuffle buffer, as `datasets` streams them; without a seed, anew each time."""
    from datasets import Dataset, interleave_datasets

    from trainer_client.indexed import Stream

    samples = rows("s", 200)
    halves = [Dataset.from_dict({"at": list(range(first, 200, 2))}).to_iterable_dataset() for first in (0, 1)]
    mixed = interleave_datasets(halves, probabilities=[0.7, 0.3], seed=1).shuffle(buffer_size=50, seed=seed)

    def open_at(first: int) -> Iterator[Any]:
        return (samples[row["at"]] for row in mixed.skip(first))

    return train_loop(config, leave_at, {"s": Stream(open_at, 100)})


def test_a_stream_with_a_shuffle_buffer_goes_on_with_other_workers_and_loses_nothing(tmp_path: Path) -> None:
    """A10: stopped inside a step, at an odd position."""
    (whole,) = run_world(1, _streamed, base_config(tmp_path / "whole", **FIELDS), None, folder=tmp_path)
    config = base_config(tmp_path, **FIELDS)
    stages = [
        run_world(world, _streamed, config, leave_at, folder=tmp_path)
        for world, leave_at in ((2, (1, 0)), (3, (3, 2)), (1, None))
    ]
    assert [stage[0]["code"] for stage in stages] == [81, 81, 0]
    assert sorted(row for ranks in stages for row in joined_ledger(ranks)) == joined_ledger([whole])
    assert np.array_equal(stages[-1][0]["weights"], whole["weights"])


def test_a_stream_that_is_shuffled_anew_each_time_is_refused_by_name(tmp_path: Path) -> None:
    """A10: between workers, and between two starts; never in silence."""
    ranks = run_world(2, _streamed, base_config(tmp_path / "two", **FIELDS), None, None, folder=tmp_path)
    assert [rank["code"] for rank in ranks] == [64, 64]
    config = base_config(tmp_path, **FIELDS)
    (first,) = run_world(1, _streamed, config, (1, 0), None, folder=tmp_path)
    (then,) = run_world(1, _streamed, config, None, None, folder=tmp_path)
    assert (first["code"], then["code"]) == (81, 64)
    told = json.loads((tmp_path / "run" / "result.json").read_text())
    assert "data set 's' gives other samples than when the run was begun" in told["message"]


def test_data_that_can_only_be_gone_through_from_its_beginning_is_refused_by_name() -> None:
    from datasets import Dataset
    from torch.utils.data import DataLoader, IterableDataset

    class Lines(IterableDataset[int]):
        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    streamed, loader = Dataset.from_dict({"a": [1]}).to_iterable_dataset(), DataLoader(Lines())
    refused: list[Any] = [Lines(), streamed, loader, iter([1, 2])]
    for data in refused:
        with pytest.raises(
            ValueError, match=r"data set 'x', of \w+, can only be gone .* Stream\(open_at, num_samples\)"
        ):
            IndexedSource({"x": data}, global_batch=2, micro_batch=1, collate=list)


def test_data_sets_may_change_places_between_two_starts_but_none_may_come_or_go(tmp_path: Path) -> None:
    data = {"a": rows("a", 30), "b": rows("b", 20)}
    (whole,) = run_world(1, train_loop, base_config(tmp_path / "whole", **FIELDS), None, data, folder=tmp_path)
    config = base_config(tmp_path, **FIELDS)
    run_world(1, train_loop, config, (2, 1), data, folder=tmp_path)
    for other in ({"a": data["a"]}, data | {"c": data["b"]}):
        (refused,) = run_world(1, train_loop, config, None, other, folder=tmp_path)
        assert refused["code"] == 64
    (turned,) = run_world(1, train_loop, config, None, dict(reversed(data.items())), folder=tmp_path)
    assert np.array_equal(turned["weights"], whole["weights"])


def test_a_launched_run_keeps_the_shards_that_it_was_begun_with(tmp_path: Path) -> None:
    """In another order, with a new one among them, one of them longer: the same samples; shorter or gone: refused."""
    added = {"id": "d1", "action": "add_shard", "args": {"shard": "a", "mode": "extend", "num_samples": 2}}
    data = b"".join(
        json.dumps({"id": f"new-{n}", "prompt": "say", "response": "new"}).encode() + b"\n" for n in range(2)
    )
    order = {"directives": [added | {"not_before_step": 1}], "data": data}
    config_file = write_shards(tmp_path, {"a": 9, "b": 7, "c": 5})
    config_file.write_text("".join(line for line in config_file.read_text().splitlines(True) if "id: c" not in line))
    whole, parts = (base_config(tmp_path, gradient_snapshot_dir=tmp_path / name) for name in ("whole", "parts"))
    ((expected, _),) = run_world(
        1, train_each, [{"config": whole} | order, {"config": parts, "leave_at": 4} | order], folder=tmp_path
    )
    begun = config_file.read_text()
    rest = {"config": base_config(tmp_path, gradient_snapshot_dir=tmp_path / "parts", resume=True)}
    a = (tmp_path / "data" / "a.jsonl").read_text()
    for name, lines, message in (
        ("a", a.splitlines(True)[:8], "has 8 samples; the run was begun with 9"),
        ("z", [], ""),
    ):
        (tmp_path / "data" / "a.jsonl").write_text("".join(lines) or a)
        config_file.write_text(begun if name == "a" else begun.replace("{id: a,", "{id: z,"))
        with pytest.raises(
            Exception, match=message or "shard a, with which the run was begun, is not among the shards"
        ):
            run_world(1, train_each, [rest], folder=tmp_path)
    (tmp_path / "data" / "a.jsonl").write_text(a + a.splitlines(True)[0])
    head, *entries = begun.splitlines(True)
    config_file.write_text(
        "".join([head, entries[0].replace("id: a", "id: c").replace("a.jsonl", "c.jsonl"), *entries[::-1]])
    )
    ((found,),) = run_world(1, train_each, [rest], folder=tmp_path)
    assert "a: 1 samples more than the run was begun with are not used" in " ".join(text for _, text in found["said"])
    assert joined_ledger([found]) == joined_ledger([expected], range(4, 8))
    assert np.array_equal(found["weights"], expected["weights"])


def _planned(config: Any) -> tuple[int, float]:
    """The planned end, and what is left of the learning rate at the last step."""
    from tests.trainer.worlds import train

    seen = train(config, (), None if config.resume else 3)
    return seen["max_steps"], seen["steps"][max(seen["steps"])]["lr"]


def test_a_run_of_epochs_ends_where_its_first_samples_said_whatever_its_files_have_gained(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": 9, "b": 7})
    fields = {"epochs": 1.5, "global_batch": 6, "steps": 99, "eval_fraction": 0.2}
    ((planned, _),) = run_world(1, _planned, base_config(tmp_path, **fields), folder=tmp_path)
    assert planned == 4  # 7 and 6 samples to train on: ceil(1.5 * 13 / 6)
    with open(tmp_path / "data" / "a.jsonl", "a") as file:
        file.writelines(json.dumps({"prompt": "say", "response": f"new {n}"}) + "\n" for n in range(20))
    ((resumed, _),) = run_world(1, _planned, base_config(tmp_path, **fields, resume=True), folder=tmp_path)
    assert resumed == 4
    with pytest.raises(Exception, match=r"--epochs 3\.0: the snapshot is of a run with 1\.5"):
        run_world(1, _planned, base_config(tmp_path, **fields | {"epochs": 3.0}, resume=True), folder=tmp_path)
