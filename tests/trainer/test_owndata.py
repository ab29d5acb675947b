"""Data of one's own under a Trainer: map-style data sets and streams, as texts, as tokens and as pairs."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.trlruns import write_forms, write_pairs
from tests.trainer.worlds import base_config, joined_ledger, run_world, train, write_shards
from trainer_client.indexed import IndexedSource, Stream, TokenEncoder

pytestmark = pytest.mark.timeout(300)

SHORT = ((2, (1, 0)), (1, None))  # workers, and where they are told to leave
PATHS: dict[str, Any] = dict.fromkeys(["texts", "slices", "sft", "dpo"], SHORT)
PATHS |= {"tokens": ((2, (1, 0)), (3, (3, 2)), (1, None))}
COUNTS = {"a": 11, "s": 9}
FIELDS: dict[str, Any] = {"steps": 5, "global_batch": 14, "micro_batch": 2, "seq_len": 24, "lr": 3e-2, "eval_every": 5}
WRITE = dict.fromkeys(["texts", "slices", "tokens"], write_shards) | {"sft": write_forms, "dpo": write_pairs}


def _build(config: Any, session: Any, entries: Any, kind: str, num_threads: int) -> Any:
    """A trainer of that kind on `a` as a list and `s` as a stream, of samples that were shards."""
    from transformers import TrainingArguments
    from trl import DPOConfig, SFTConfig

    from trainer_client.encoding import Encoder
    from trainer_client.finetune import training_fields
    from trainer_client.models import obtain_model
    from trainer_client.options import BidirectionalOptions
    from trainer_client.sampleforms import conversed, preferred
    from trainer_client.sharddata import ShardSet
    from trainer_client.trainer import BidirectionalTrainer
    from trainer_client.trl import (
        CounterflowDPOTrainer,
        CounterflowSFTTrainer,
        PreferenceEncoder,
        SupervisedEncoder,
    )

    form = {"sft": conversed, "dpo": preferred}.get(kind)
    shards = ShardSet.open(entries, 0.0, *([form] if form else []))
    model, tokenizer = obtain_model(
        config.model, shards.texts(), config.gradient_snapshot_dir, session.agreement,
        dtype="fp32", seed=config.seed, seq_len=config.seq_len,
    )  # fmt: skip
    samples = {
        name: [shards.read(at, index) for index in range(count)] for at, (name, count) in enumerate(COUNTS.items())
    }
    if kind == "tokens":
        encoder = Encoder(tokenizer, 1000)
        samples = {name: [_tokens(encoder, sample) for sample in found] for name, found in samples.items()}

    def open_at(first: int) -> Iterator[Any]:
        return islice(iter(samples["s"]), first, None)

    fields = training_fields(config)
    args: Any = {"sft": SFTConfig, "dpo": DPOConfig}.get(kind)
    made: Any = None if args is None else args(**fields, max_length=config.seq_len)
    encoders: dict[str, Any] = {
        "texts": lambda: Encoder(tokenizer, config.seq_len),
        "slices": lambda: Encoder(tokenizer, config.seq_len),
        "tokens": lambda: TokenEncoder(int(tokenizer.pad_token_id), config.seq_len),
        "sft": lambda: SupervisedEncoder(tokenizer, made),
        "dpo": lambda: PreferenceEncoder(tokenizer, made),
    }
    source = IndexedSource(
        {"a": samples["a"], "s": Stream(open_at, COUNTS["s"])},
        encoder=encoders[kind](), global_batch=config.global_batch, micro_batch=config.micro_batch, num_threads=num_threads,
        held_out={"s": samples["s"][:3]},
    )  # fmt: skip
    trainers: dict[str, Any] = {"sft": CounterflowSFTTrainer, "dpo": CounterflowDPOTrainer}
    options = BidirectionalOptions(
        snapshot_dir=config.gradient_snapshot_dir,
        snapshot_every=0,
        export_every=0,
        eval_every=config.eval_every,
        parallel="fsdp" if kind == "slices" else "ddp",
    )
    return trainers.get(kind, BidirectionalTrainer)(
        model=model, args=made or TrainingArguments(**fields), processing_class=tokenizer, source=source, session=session,
        options=options,
    )  # fmt: skip


def _tokens(encoder: Any, sample: dict[str, Any]) -> dict[str, Any]:
    (found,) = encoder.encode([sample])
    labels = [-100 if at < found.supervised_from else token for at, token in enumerate(found.ids)]
    return {"id": sample["id"], "input_ids": list(found.ids), "labels": labels}


def _train(config: Any, kind: str, leave_at: Any = None, num_threads: int = 2) -> dict[str, Any]:
    return train(config, leave_at=leave_at, build=partial(_build, kind=kind, num_threads=num_threads))


@pytest.mark.parametrize("kind", list(WRITE))
def test_a_trainer_goes_on_in_data_of_ones_own_with_other_workers_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    WRITE[kind](tmp_path, COUNTS)
    (whole,) = run_world(
        1, _train, base_config(tmp_path, **FIELDS, gradient_snapshot_dir=tmp_path / "w"), kind, None, 0, folder=tmp_path
    )
    config = base_config(tmp_path, **FIELDS, resume=True)
    stages = [run_world(world, _train, config, kind, leave_at, folder=tmp_path) for world, leave_at in PATHS[kind]]
    assert [stage[0]["code"] for stage in stages] == [81] * (len(stages) - 1) + [0]
    assert stages[1][0]["start_micro"] > 0, "left inside a step"
    assert sorted(row for ranks in stages for row in joined_ledger(ranks)) == joined_ledger([whole])
    assert len({row[3] for row in joined_ledger([whole])}) == 20, "each sample came"
    assert np.array_equal(stages[-1][0]["weights"], whole["weights"])
    (evaluated,) = whole["evaluations"].values()
    assert evaluated.keys() == {"s"}
    assert evaluated["s"][2] == 3
    assert stages[-1][0]["evaluation"]["s"] == pytest.approx(evaluated["s"])
    assert stages[0][0]["hello"]["shards"] == [("a", 11), ("s", 9)]


def test_tokens_train_as_the_texts_that_they_were_made_of(tmp_path: Path) -> None:
    write_shards(tmp_path, COUNTS)
    texts, tokens = (
        run_world(
            1,
            _train,
            base_config(tmp_path, **FIELDS | {"seq_len": 1000}, gradient_snapshot_dir=tmp_path / kind),
            kind,
            folder=tmp_path,
        )[0]
        for kind in ("texts", "tokens")
    )
    assert np.array_equal(texts["weights"], tokens["weights"])
    assert texts["steps"].keys() == tokens["steps"].keys() == set(range(5))


def test_tokens_are_padded_on_the_right_and_what_nothing_comes_before_is_not_counted() -> None:
    encoder = TokenEncoder(9, 3)
    samples = [{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6], "labels": [-100, 6]}, {"input_ids": [7]}]
    fields, count = encoder.collate(encoder.encode(samples))
    assert fields["input_ids"].tolist() == [[1, 2, 3], [5, 6, 9], [7, 9, 9]]
    assert fields["labels"].tolist() == [[-100, 2, 3], [-100, 6, -100], [-100, -100, -100]]
    assert count == 3
    wrongs: list[dict[str, Any]] = [
        {"input_ids": [1, 2], "labels": [1]}, {"input_ids": []}, {"input_ids": [[1, 2]]},
        {"input_ids": [1, 2], "attention_mask": [1]},
    ]  # fmt: skip
    for wrong in wrongs:
        with pytest.raises(ValueError, match="rows of equal length"):
            encoder.encode([wrong])


def test_what_was_padded_before_is_not_supervised() -> None:
    encoder = TokenEncoder(None, 3)
    padded = [
        {"input_ids": [7, 5, 6, 9, 9], "attention_mask": [1, 1, 1, 0, 0]},
        {"input_ids": [9, 9, 5, 6], "attention_mask": [0, 0, 1, 1], "labels": None},
    ]
    fields, count = encoder.collate(encoder.encode(padded))
    assert fields["input_ids"].tolist() == [[7, 5, 6], [5, 6, 0]]
    assert count == 3


def test_a_sample_that_is_no_tokens_ends_the_run_by_its_name(tmp_path: Path) -> None:
    from trainer_client.samplefaults import SampleFault

    data = [{"id": f"t-{at}", "input_ids": [1, 2, 3]} for at in range(6)]
    data[4]["labels"] = [1, 2]
    source = IndexedSource({"t": data}, encoder=TokenEncoder(0, 8), global_batch=6, micro_batch=2)
    with pytest.raises(SampleFault, match=r"sample 4 of shard t \(id t-4\) cannot be made ready: ValueError: rows of"):
        source.build(source.mixture.plan(0), range(3))


def test_threads_read_a_stream_in_any_order_and_nothing_twice() -> None:
    given: list[int] = []

    def open_at(first: int) -> Iterator[int]:
        for number in range(first, 400):
            given.append(number)
            yield number

    stream = Stream(open_at, 400)
    orders = [list(range(start, 400, 8)) for start in range(8)]
    found: list[list[int]] = [[] for _ in orders]
    threads = [
        threading.Thread(target=lambda own, order: own.extend(stream[at] for at in order), args=pair)
        for pair in zip(found, orders, strict=True)
    ]
    stream[0]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == orders
    assert given == list(range(400))


def test_what_is_held_out_belongs_to_a_data_set() -> None:
    with pytest.raises(ValueError, match=r"held_out names \['y'\], but the data sets are \['x'\]"):
        IndexedSource({"x": [1]}, collate=list, global_batch=1, micro_batch=1, held_out={"y": [1]})


def test_one_way_to_make_micro_batches_is_asked_for(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"global_batch": 2, "micro_batch": 1}
    both: dict[str, Any] = {"collate": list, "encoder": TokenEncoder(0, 8)}
    for given in ({}, both):
        with pytest.raises(ValueError, match="give collate, for an ElasticLoop, or an encoder, for a Trainer"):
            IndexedSource({"x": json.loads("[1, 2]")}, **sizes, **given)
