"""Memory by formula against memory as measured on small models, and the worlds that follow from it."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoConfig, AutoModelForCausalLM

from tests.trainer.trlruns import write_pairs
from tests.trainer.worlds import base_config, run_world
from trainer_client import fit_memory
from trainer_client.accumulation import Accumulation
from trainer_client.agreement import Agreement
from trainer_client.fit import gib_per_gpu, main, placements, report
from trainer_client.fit_memory import FitSettings, memory
from trainer_client.loss import sample_losses
from trainer_client.models import DTYPES, add_lora, train_tokenizer
from trainer_client.modelshape import ModelShape, shape_of
from trainer_client.treeaccumulation import accumulation_of_copies
from trainer_client.workshare import StepWork

LLAMA = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 512, "tie_word_embeddings": True, "max_position_embeddings": 512,
}  # fmt: skip
SHAPES = {
    "llama": LLAMA,
    "deep": LLAMA | {"num_hidden_layers": 6, "tie_word_embeddings": False},
    "words": LLAMA | {"vocab_size": 6000, "num_hidden_layers": 2},
    "grouped": LLAMA | {"model_type": "qwen2", "num_key_value_heads": 2, "hidden_size": 192, "num_attention_heads": 6},
    "qwen3": LLAMA | {"model_type": "qwen3", "num_key_value_heads": 2, "head_dim": 64},
    "mistral": LLAMA | {"model_type": "mistral", "sliding_window": None, "intermediate_size": 512},
}


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensors that are alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor)
        return out

    def most_of(self, work: Callable[[], None]) -> int:
        """The most bytes there ever were in this piece of work."""
        gc.collect()
        self.most = 0
        work()
        return self.most

    def count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage in self._seen:
            return
        size = storage.nbytes()
        self._seen[storage] = size
        weakref.finalize(storage, self._gone, size)
        self.now += size
        self.most = max(self.most, self.now)

    def _gone(self, size: int) -> None:
        self.now -= size


def measured(config: dict[str, Any], settings: FitSettings) -> int:
    """The most bytes of tensors in an optimizer step of a real model that has been trained, as the trainer does it."""
    fields = dict(config)
    model: Any = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(fields.pop("model_type"), **fields), dtype=DTYPES[settings.precision]
    )
    if settings.lora:
        model = add_lora(model, settings.lora, settings.lora)
    if settings.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    kinds: dict[str, Any] = {
        "adamw": lambda: torch.optim.AdamW(trained, fused=True),
        "sgd": lambda: torch.optim.SGD(trained),
    }
    optimizer, live = kinds[settings.optimizer](), LiveBytes()
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    accumulation = accumulation_of_copies(model, Agreement(), settings.fidelity)
    with live:
        for tensor in tree_iter([list(model.parameters()), list(model.buffers()), list(optimizer.state.values())]):
            live.count(tensor.data)
        _step(optimizer, settings, accumulation, losses_by(model, settings))
    return live.most


def losses_by(model: Any, settings: FitSettings) -> Callable[[int], torch.Tensor]:
    """For a number of samples, all as long as they may be: what a micro-batch of them loses."""

    def losses(num_samples: int) -> torch.Tensor:
        ids = torch.randint(0, 500, (num_samples, settings.seq_len))
        return sample_losses(model(input_ids=ids, use_cache=False).logits, ids)[0]

    return losses


def _step(
    optimizer: Any, settings: FitSettings, accumulation: Accumulation, losses: Callable[[int], torch.Tensor]
) -> None:
    """One step of this rank, which has its turn in every round."""
    agreement = Agreement()
    num_micro = -(-settings.global_batch // settings.micro_batch)
    work = StepWork.dealt(num_micro, agreement.world_size)
    accumulation.begin(work, None)
    for index in work.remaining[agreement.rank]:
        num_samples = min(settings.micro_batch, settings.global_batch - index * settings.micro_batch)
        losses(num_samples).sum().backward()
        accumulation.take(index)
    accumulation.reduce()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("llama", FitSettings(8, 4, 128)),
        ("llama", FitSettings(8, 4, 128, fidelity="same_world")),
        ("llama", FitSettings(7, 1, 32)),
        ("llama", FitSettings(1, 1, 32)),
        ("llama", FitSettings(8, 4, 128, precision="bf16")),
        ("llama", FitSettings(4, 4, 64, optimizer="sgd")),
        ("llama", FitSettings(8, 4, 128, lora=4)),
        ("llama", FitSettings(8, 4, 128, lora=4, precision="bf16")),
        ("deep", FitSettings(4, 4, 128)),
        ("deep", FitSettings(8, 4, 256, recompute=True)),
        ("deep", FitSettings(8, 4, 128, precision="bf16", recompute=True)),
        ("words", FitSettings(4, 4, 128)),
        ("words", FitSettings(8, 1, 16)),
        ("words", FitSettings(8, 1, 16, fidelity="same_world")),
        ("grouped", FitSettings(8, 4, 128)),
        ("qwen3", FitSettings(8, 4, 128)),
        ("mistral", FitSettings(4, 4, 64)),
    ],
    ids=str,
)
def test_the_formula_is_within_five_percent_of_what_a_real_model_takes(name: str, settings: FitSettings) -> None:
    found = measured(SHAPES[name], settings)
    assert memory(ModelShape.from_config(SHAPES[name]), settings).total == pytest.approx(found, rel=0.05)


def bytes_of_pairs(folder: Path, name: str, given: dict[str, Any]) -> int:
    """The same of a step on pairs, by trl's trainer as the launcher makes it, with tiles no wider than the vocabulary."""
    import trl.trainer.utils

    from trainer_client.finetune import build_trainer
    from trainer_client.session import Session, SessionConfig
    from trainer_client.sharddata import load_shard_config

    trl.trainer.utils._CHUNKED_LOGPROB_CHUNK_SIZE = SHAPES[name]["vocab_size"]
    settings = FitSettings(**given, method="dpo")
    fields = dict(SHAPES[name])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    train_tokenizer(["say red green"], 400).save_pretrained(folder / "model")
    wanted = base_config(
        folder, model=str(folder / "model"), method="dpo", dtype=settings.precision, lora=settings.lora, fidelity=settings.fidelity,
        recompute="layers" if settings.recompute else "none", seq_len=settings.seq_len,
    )  # fmt: skip
    trainer: Any = build_trainer(wanted, Session(SessionConfig(wanted.run_dir)), load_shard_config(wanted.shard_config))
    model = trainer.model.train()
    if settings.recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer, live = torch.optim.AdamW(trained, fused=True), LiveBytes()
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    accumulation = accumulation_of_copies(model, Agreement(), settings.fidelity)

    def losses(num_pairs: int) -> torch.Tensor:
        ids = torch.randint(0, 200, (2 * num_pairs, settings.seq_len))
        both = {"attention_mask": torch.ones_like(ids), "completion_mask": torch.ones_like(ids)}
        found: torch.Tensor = trainer.sample_losses(model, {"input_ids": ids, **both})[0]
        return found

    reference = [] if trainer.ref_model is None else list(trainer.ref_model.parameters())
    with live:
        for tensor in tree_iter(
            [list(model.parameters()), list(model.buffers()), reference, list(optimizer.state.values())]
        ):
            live.count(tensor.data)
        _step(optimizer, settings, accumulation, losses)
    return live.most


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("llama", {"precision": "fp32"}),
        ("llama", {"precision": "bf16"}),
        ("llama", {"precision": "fp32", "lora": 4}),
        ("deep", {"precision": "fp32", "recompute": True, "fidelity": "same_world"}),
    ],
    ids=str,
)
def test_the_formula_counts_pairs_and_their_reference(
    name: str, given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"global_batch": 8, "micro_batch": 4, "seq_len": 128} | given
    write_pairs(tmp_path, {"a": 9})
    monkeypatch.setattr(fit_memory, "TILE_VOCAB", SHAPES[name]["vocab_size"])
    monkeypatch.setattr(fit_memory, "TILE_FOLD_BYTES", 7 * 4)
    (found,) = run_world(1, bytes_of_pairs, tmp_path, name, given, folder=tmp_path)
    expected = memory(ModelShape.from_config(SHAPES[name]), FitSettings(**given, method="dpo")).total
    assert expected == pytest.approx(found, rel=0.05)


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_counted_exactly(name: str) -> None:
    fields = dict(SHAPES[name])
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(fields.pop("model_type"), **fields))
        counted = ModelShape.from_config(SHAPES[name])
        assert counted.num_parameters == sum(parameter.numel() for parameter in model.parameters())
        adapted = add_lora(model, 8, 8)
        trained = sum(parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad)
    assert counted.lora_parameters(8) == trained


SLICED = LLAMA | {"hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 6, "num_key_value_heads": 6}


def sliced_bytes(settings: FitSettings) -> int:
    """On one rank: the most bytes of tensors in a step of a model that is in slices."""
    from torch.distributed.tensor import DTensor

    from trainer_client.sliceaccumulation import SliceAccumulation, SliceTreeAccumulation
    from trainer_client.slices import Slices

    class SlicedBytes(LiveBytes):
        """FSDP empties storages that it keeps, so each is asked for its size every time."""

        def count(self, tensor: torch.Tensor) -> None:
            if not isinstance(tensor, DTensor):
                self._seen[tensor.untyped_storage()] = 0
                self.most = max(self.most, sum(storage.nbytes() for storage in list(self._seen)))

    fields = dict(SLICED)
    model: Any = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(fields.pop("model_type"), **fields), dtype=DTYPES[settings.precision]
    )
    if settings.lora:
        model = add_lora(model, settings.lora, settings.lora)
    slices = Slices(model, Agreement())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    exact = settings.fidelity == "exact"
    accumulation = SliceTreeAccumulation(named, slices) if exact else SliceAccumulation(named)
    optimizer, live = torch.optim.AdamW(trained, foreach=False), SlicedBytes()
    _step(optimizer, settings, accumulation, losses_by(model, settings))
    with live:
        for tensor in tree_iter([list(model.parameters()), list(optimizer.state.values())]):
            live.count(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
        # When what travels is let go of depends on the other rank: what a step takes is the least of several.
        return min(
            live.most_of(lambda: _step(optimizer, settings, accumulation, losses_by(model, settings))) for _ in range(3)
        )


def sliced_sizes(each: list[FitSettings]) -> list[int]:
    return [sliced_bytes(settings) for settings in each]


def test_slices_of_two_real_ranks_take_what_the_formula_says(tmp_path: Path) -> None:
    each = [
        FitSettings(num, 1, 64, precision, lora=lora, fidelity=fidelity)
        for fidelity, num, precision, lora in (
            ("same_world", 4, "fp32", 0),
            ("same_world", 4, "bf16", 0),
            ("same_world", 4, "fp32", 4),
            ("exact", 4, "fp32", 0),
            ("exact", 4, "bf16", 0),
            ("exact", 8, "fp32", 0),
            ("exact", 8, "fp32", 4),
        )
    ]
    shape = ModelShape.from_config(SLICED)
    expected = [memory(shape, settings, num_workers=2, parallel="fsdp").total for settings in each]
    assert run_world(2, sliced_sizes, each, folder=tmp_path) == [pytest.approx(expected, rel=0.07)] * 2


SEVEN_B = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
    "vocab_size": 32000,
}  # fmt: skip


def test_seven_billion_parameters_need_several_gpus_in_full_and_one_with_adapters() -> None:
    shape = ModelShape.from_config(SEVEN_B)
    full, lora = (
        FitSettings(64, 4, 2048, "bf16", recompute=True),
        FitSettings(64, 4, 2048, "bf16", lora=16, recompute=True),
    )
    least = replace(full, fidelity="same_world")
    assert report(shape, least, gpu_gib=40, max_workers=8)["min_workers"] == 2
    assert report(shape, full, gpu_gib=40, max_workers=8)["min_workers"] == 4
    assert report(shape, lora, gpu_gib=40, max_workers=8)["min_workers"] == 1
    first = next(placements(shape, full, gpu_gib=40, max_workers=8))
    assert (first.parallel, first.gib_per_gpu <= 40) == ("fsdp", True)


@pytest.mark.parametrize("gpu_gib", [2.2, 3.0, 24.0])
def test_every_world_does_the_whole_global_batch_within_the_gpu(gpu_gib: float) -> None:
    shape, settings = shape_of("tiny:100m"), FitSettings(global_batch=30, micro_batch=8, seq_len=512)
    worlds = list(placements(shape, settings, gpu_gib=gpu_gib, max_workers=8))
    assert worlds
    for way in worlds:
        assert way.gib_per_gpu <= gpu_gib
        assert way.micro_batch * way.num_accumulation * way.num_workers >= settings.global_batch
        assert way.micro_batch * (way.num_accumulation - 1) * way.num_workers < settings.global_batch


def test_what_fits_nowhere_and_what_is_unknown_say_what_would_help(capsys: Any, tmp_path: Any) -> None:
    assert main(["--model", "tiny:200m", "--gpu-gib", "1.1", "--max-gpus", "2"]) == 1
    assert "take LoRA" in capsys.readouterr().out
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    for model, words in ((tmp_path, "known: llama"), ("no/such", "a folder with a config.json")):
        assert main(["--model", str(model)]) == 2
        assert words in capsys.readouterr().err


def test_the_command_tells_programs_the_same_as_people(capsys: Any, tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    assert main(["--model", str(tmp_path), "--precision", "bf16", "--lora", "8", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    needs = memory(ModelShape.from_config(SEVEN_B), FitSettings(precision="bf16", lora=8))
    assert told["needs_gib_per_gpu"] == pytest.approx(gib_per_gpu(needs), abs=1e-3)
    assert main(["--model", str(tmp_path), "--precision", "bf16", "--lora", "8"]) == 0
    assert f"needs {told['needs_gib_per_gpu']:.2f} GiB" in capsys.readouterr().out
