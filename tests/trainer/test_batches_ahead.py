"""Micro-batches that threads make ahead: the same to the bit, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.trainer.paths import COUNTS, assert_equal_bits, assert_nothing_lost
from tests.trainer.worlds import base_config, run_world, train, write_shards
from trainer_client.encoding import BatchSource
from trainer_client.mixture import ShardedMixture
from trainer_client.sampleencoder import Kept, SampleEncoder
from trainer_client.samplefaults import SampleFault
from trainer_client.sampleforms import ShardDataError
from trainer_client.sharddata import ShardSet, load_shard_config, parse_added

pytestmark = pytest.mark.timeout(300)


class Lengths(SampleEncoder):
    """A sample is its letters. `at(sample, thread)` is called for each one that is encoded."""

    def __init__(self, at: Callable[[dict[str, Any], str], None] = lambda *_: None) -> None:
        super().__init__()
        self._at = at

    def encode(self, samples: Sequence[dict[str, Any]]) -> list[list[int]]:
        for sample in samples:
            self._at(sample, threading.current_thread().name)
        return [[ord(letter) for letter in sample["response"]] for sample in samples]

    def collate(self, encoded: Sequence[list[int]]) -> tuple[dict[str, Any], int]:
        rows = [torch.tensor(row) for row in encoded]
        return {"input_ids": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)}, sum(map(len, encoded))


def _source(folder: Path, num_workers: int, encoder: SampleEncoder | None = None, **more: Any) -> BatchSource:
    if not (folder / "shard_config.yaml").is_file():
        write_shards(folder, COUNTS)
    shards = ShardSet.open(load_shard_config(folder / "shard_config.yaml"))
    mixture = ShardedMixture(shards.counts(), global_batch=7, seed=3)
    return BatchSource(mixture, shards, encoder or Lengths(), micro_batch=2, num_workers=num_workers, **more)


def _shuffled(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample | {"response": "".join(rng.permutation(list(sample["response"])))}


def _given(source: BatchSource, num_steps: int, places: Sequence[int] = (0, 1, 2, 3)) -> list[Any]:
    """All that a run over these steps is given, while the mixture changes and its data are replaced."""
    found = []
    for step in range(num_steps):
        if step == 3:
            source.build(source.mixture.plan(step), places)  # as at a control point, which then changes the step
            source.mixture.apply(step, {"action": "set_weights", "weights": {"a": 4.0}})
        if step == 5:
            lines = b"".join(json.dumps({"text": f"new {n}", "response": "z" * n}).encode() + b"\n" for n in range(9))
            change = {"action": "add_shard", "shard": "b", "num_samples": 9, "mode": "replace"}
            source.mixture.apply(step, change)
            source.shards.add("b", parse_added(lines.replace(b"text", b"prompt"), "b", 9), "replace")
        for micro in source.build(source.mixture.plan(step), places):
            rows = micro.fields["input_ids"].tolist()
            found.append((step, micro.index, rows, micro.shard.tolist(), micro.num_supervised))
    return found


@pytest.mark.parametrize("transform", [None, _shuffled], ids=["kept", "augmented"])
def test_any_number_of_workers_gives_the_same_bits_while_the_mixture_changes(tmp_path: Path, transform: Any) -> None:
    expected = _given(_source(tmp_path, 0, transform=transform), 9)
    assert len(expected) == 36
    for num_workers in (1, 3, 9):
        source = _source(tmp_path, num_workers, transform=transform)
        assert _given(source, 9) == expected
        source.close()
    source = _source(tmp_path, 4, transform=transform)
    assert _given(source, 9, [2]) == [item for item in expected if item[1] == 2]
    source.close()


def test_all_but_the_first_step_is_made_by_the_threads_and_none_of_it_by_nobody(tmp_path: Path) -> None:
    made: list[tuple[str, str]] = []
    source = _source(tmp_path, 2, Lengths(lambda sample, thread: made.append((sample["id"], thread))))
    drawn = [source.mixture.plan(0)]
    for step in range(3):
        source.build(source.mixture.plan(step), (0, 1, 2, 3))
        drawn.append(source.mixture.plan(step + 1))
    first = [name for name, thread in made if not thread.startswith("counterflow-data")]
    assert len(first) == len(drawn[0]) == 7
    source.close()


def test_a_plan_ahead_is_what_comes_unless_a_change_comes_before() -> None:
    ahead, plain = (ShardedMixture({"a": 9, "b": 5}, global_batch=2048, seed=1) for _ in range(2))
    for step in range(7):  # beyond the planned block, which holds two steps of this size
        now, found = ahead.plan(step), ahead.ahead(step, 3)
        assert [plan.step for plan in found] == [step + 1, step + 2, step + 3]
        assert np.array_equal(now.sample, plain.plan(step).sample)
        if step == 4:
            for mixture in (ahead, plain):
                mixture.apply(5, {"action": "pause_shard", "shard": "a"})
        assert ahead.state_dict(step) == plain.state_dict(step) if step != 4 else True


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_fault_names_the_sample(tmp_path: Path, num_workers: int) -> None:
    def broken(sample: dict[str, Any], thread: str) -> None:
        if sample["id"] == "c-4":
            raise KeyError("no such token")

    source = _source(tmp_path, num_workers, Lengths(broken))
    with pytest.raises(SampleFault, match=r"sample 4 of shard c \(id c-4\) cannot be made ready: KeyError"):
        _given(source, 9)
    source.close()


def test_a_fault_of_the_file_is_told_with_its_line(tmp_path: Path) -> None:
    source = _source(tmp_path, 2)
    shard = source.shards._shards[2]
    shard.parts[0][0]._form = lambda raw, where: (_ for _ in ()).throw(ShardDataError(f"{where}: broken"))  # type: ignore[attr-defined]
    with pytest.raises(ShardDataError, match=r"c\.jsonl:\d+: broken"):
        _given(source, 9)
    source.close()


def test_a_fault_ahead_of_time_ends_nothing_that_does_not_ask_for_it(tmp_path: Path) -> None:
    """Made ahead for a plan that a change replaced, or once only, as by a file system that was away for a moment."""
    failed: list[str] = []

    def once(sample: dict[str, Any], thread: str) -> None:
        if thread.startswith("counterflow-data") and sample["id"] not in failed:
            failed.append(sample["id"])
            raise OSError("away")

    source = _source(tmp_path, 2, Lengths(once))
    assert _given(source, 5) == _given(_source(tmp_path, 0), 5)
    assert failed
    source.close()


def test_what_was_made_ahead_and_is_not_asked_for_is_dropped_at_the_end(tmp_path: Path) -> None:
    held, begun = threading.Event(), threading.Event()
    made: list[str] = []

    def slow(sample: dict[str, Any], thread: str) -> None:
        if thread.startswith("counterflow-data"):
            begun.set()
            held.wait(60)
            made.append(sample["id"])

    before = threading.enumerate()
    source = _source(tmp_path, 1, Lengths(slow))
    source.build(source.mixture.plan(0), (0, 1, 2, 3))
    assert begun.wait(60)
    source.close()
    (thread,) = [thread for thread in threading.enumerate() if thread not in before]
    held.set()
    thread.join(60)
    assert not thread.is_alive()
    assert len(made) == 2  # the micro-batch under way


def test_encoders_of_trl_have_a_tokenizer_for_each_thread_and_share_what_was_encoded(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, SFTConfig

    from trainer_client.trl import PreferenceEncoder, SupervisedEncoder

    words = {word: number for number, word in enumerate(["<eos>", "<unk>", "red", "green", "blue"])}
    plain = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    plain.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="<eos>", unk_token="<unk>")
    place: dict[str, Any] = {"output_dir": str(tmp_path), "use_cpu": True, "report_to": "none", "bf16": False}
    pair = {"prompt": "red", "chosen": "green", "rejected": "blue", "completion": "blue green"}
    for one in (
        SupervisedEncoder(tokenizer, SFTConfig(**place)),
        PreferenceEncoder(tokenizer, DPOConfig(**place)),
    ):
        other: Any = one.for_thread()
        assert other.encode([pair]) == one.encode([pair])
        assert other._tokenizer is not tokenizer
        other.cached([(0, 0, 0)], lambda _: pair)
        assert one.cached([(0, 0, 0)], lambda _: {}) == one.encode([pair])


def test_what_was_encoded_is_kept_up_to_its_weight_the_newest() -> None:
    kept = Kept(100)
    kept.keep({at: f"s{at}" for at in range(6)}, dict.fromkeys(range(6), 25))
    assert kept.known(range(6)) == {at: f"s{at}" for at in range(2, 6)}
    kept.keep({3: "again"}, {3: 25})
    kept.keep({7: "long"}, {7: 60})
    assert kept.known(range(8)) == {3: "again", 7: "long"}
    kept.keep({8: "too long"}, {8: 101})
    assert len(kept) == 0
    kept.keep({9: "fits"}, {9: 100})
    assert kept.known([9]) == {9: "fits"}


FIELDS: dict[str, Any] = {"steps": 4, "global_batch": 14, "micro_batch": 1}


def told_ahead(config: Any, session: Any, entries: Any) -> Any:
    """The launcher's trainer; SIGTERM comes to rank 1 while its threads work on step 2."""
    from trainer_client.finetune import build_trainer

    trainer = build_trainer(config, session, entries)
    session.install_signal_handlers()
    made, told = trainer.source._made, threading.Lock()

    def interrupted(wanted: Any, encoder: Any) -> Any:
        is_ahead = threading.current_thread() is not threading.main_thread()
        if session.rank == 1 and is_ahead and wanted[0].step == 2 and told.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGTERM)
            session._terminated.wait(60)
        return made(wanted, encoder)

    trainer.source._made = interrupted  # type: ignore[method-assign]
    return trainer


def test_a_sigterm_during_the_reading_ahead_leaves_and_a_resume_loses_and_repeats_nothing(tmp_path: Path) -> None:
    write_shards(tmp_path, COUNTS)
    whole = base_config(tmp_path, **FIELDS, gradient_snapshot_dir=tmp_path / "whole")
    one = run_world(1, train, whole, folder=tmp_path)
    config = base_config(tmp_path, **FIELDS, loader_workers=2)
    first = run_world(2, train, config, (), None, None, 0.0, b"", told_ahead, folder=tmp_path)
    assert [rank["code"] for rank in first] == [81, 81]
    assert max(first[0]["ledger"]) in (1, 2)
    rest = run_world(3, train, base_config(tmp_path, **FIELDS, resume=True, loader_workers=3), folder=tmp_path)
    assert [rank["code"] for rank in rest] == [0, 0, 0]
    assert_nothing_lost([first, rest], one)
    assert_equal_bits([first, rest], one)
