"""What a trainer or a model cannot follow is refused at the start, with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.worlds import base_config, build_idle_trainer, run_world, train, write_shards

SETTINGS: list[dict[str, Any]] = [
    {"fp16": True},
    {"num_train_epochs": 2},
    {"train_sampling_strategy": "group_by_length"},
    {"auto_find_batch_size": True},
    {"eval_strategy": "steps"},
    {"eval_on_start": True},
    {"label_smoothing_factor": 0.1},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_shards(tmp_path, {"a": 17, "b": 9})
    return tmp_path


def _refused(folder: Path) -> dict[str, str]:
    """What is said to each setting, part and model; nothing where it is taken."""
    from transformers import MixtralConfig, MixtralForCausalLM, TrainingArguments

    from trainer_client.finetune import training_fields
    from trainer_client.trainer import BidirectionalTrainer

    config = base_config(folder)
    plain = build_idle_trainer(config)

    def said(*, settings: Any = None, **parts: Any) -> str:
        args = TrainingArguments(**training_fields(config) | (settings or {}))
        given = {"model": plain.model, "source": plain.source, "session": plain.session, "options": plain.options}
        try:
            BidirectionalTrainer(args=args, **given | parts)
        except ValueError as error:
            return str(error)
        return ""

    def experts(coefficient: float) -> Any:
        shape = {"vocab_size": 300, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 2}
        router = {"output_router_logits": True, "router_aux_loss_coef": coefficient}
        return MixtralForCausalLM(MixtralConfig(**shape, **heads, **router))

    held_out = [{"input_ids": [1, 2]}]
    each = [item for setting in SETTINGS for item in setting.items()]
    found = {name: said(settings={name: value}, eval_dataset=held_out) for name, value in each}
    found["train_dataset"] = said(train_dataset=[{"input_ids": [1, 2]}])
    found["compute_loss_func"] = said(compute_loss_func=lambda *_: None)
    try:
        plain.train(resume_from_checkpoint=str(folder))
    except ValueError as error:
        found["resume_from_checkpoint"] = f"BidirectionalTrainer cannot follow {error}"
    found["router"] = said(model=experts(0.01))
    found["taken"] = said() + said(settings={"num_train_epochs": 3}) + said(model=experts(0.0))
    return found


def test_settings_that_cannot_be_followed_are_refused_by_name(folder: Path) -> None:
    (found,) = run_world(1, _refused, folder, folder=folder)
    assert found.pop("taken") == ""
    assert "auxiliary loss" in found.pop("router")
    for name, said in found.items():
        assert f"BidirectionalTrainer cannot follow {name}: " in said


def _packed(folder: Path, kinds: dict[str, dict[str, Any]]) -> dict[str, str]:
    """What is said to `--layout packed` with a new model of each kind, in both types of numbers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from trainer_client.finetune_config import ConfigError
    from trainer_client.models import train_tokenizer

    tokenizer = train_tokenizer(["say red green blue " * 20], 300)
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    found = {}
    for kind, shape in kinds.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape, **ids)).save_pretrained(folder / kind)
        tokenizer.save_pretrained(folder / kind)
        for dtype in ("fp32", "bf16"):
            try:
                build_idle_trainer(base_config(folder, model=str(folder / kind), layout="packed", dtype=dtype))
                found[f"{kind} {dtype}"] = ""
            except ConfigError as error:
                found[f"{kind} {dtype}"] = str(error)
    return found


def test_a_model_that_mixes_the_samples_of_a_packed_row_is_refused(folder: Path) -> None:
    """OPT attends to all of the row; RecurrentGemma and Jamba carry a state along it. All take positions."""
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    grouped = shape | {"intermediate_size": 64, "num_key_value_heads": 2}
    kinds = {
        "qwen2": grouped,
        "mixtral": grouped | {"num_local_experts": 4},
        "opt": shape | {"ffn_dim": 64, "word_embed_proj_dim": 32},
        "recurrent_gemma": shape | {"intermediate_size": 64, "num_hidden_layers": 3, "lru_width": 32},
        "jamba": grouped | {"num_experts": 2, "mamba_d_state": 4, "mamba_dt_rank": 4},
    }
    (found,) = run_world(1, _packed, folder, kinds, folder=folder)
    assert [kind for kind, said in found.items() if not said] == [
        f"{kind} {dtype}" for kind in ("qwen2", "mixtral") for dtype in ("fp32", "bf16")
    ]
    assert all("mixes the samples of a row" in said for said in found.values() if said)


def _packed_in_slices(folder: Path, is_looked_at: bool) -> list[Any]:
    """Gradient norms and weights of a run with packed rows in slices."""
    import trainer_client.finetune as module

    if not is_looked_at:
        module.mixes_samples = lambda *_, **__: False
    config = base_config(folder, steps=2, layout="packed", parallel="fsdp", dtype="bf16")
    seen = train(replace(config, gradient_snapshot_dir=folder / str(is_looked_at)))
    return [*(columns["grad_norm"] for columns in seen["steps"].values()), *seen["weights"]]


def test_slices_train_as_if_nobody_had_looked_whether_the_model_mixes_samples(folder: Path) -> None:
    looked, unlooked = [run_world(2, _packed_in_slices, folder, way, folder=folder) for way in (True, False)]
    assert looked == unlooked


def test_data_sets_of_ones_own_are_refused_where_a_trainer_would_divide_by_what_they_do_not_count() -> None:
    from trainer_client.indexed import IndexedSource, Stream
    from trainer_client.settings import SettingRefused
    from trainer_client.trainer import BidirectionalTrainer
    from trainer_client.trl import CounterflowDPOTrainer, CounterflowSFTTrainer

    data: dict[str, Any] = {"a": [1, 2, 3], "s": Stream(lambda first: iter(range(first, 9)), 9)}
    source = IndexedSource(data, global_batch=2, micro_batch=1, collate=list)
    half_made: Any = SimpleNamespace(source=source)  # nothing else is looked at before
    trls: list[Any] = [CounterflowSFTTrainer, CounterflowDPOTrainer]
    said = "which collate does not count: give IndexedSource an encoder"
    with pytest.raises(SettingRefused, match=said):
        BidirectionalTrainer._check_args(half_made)
    for trainer in trls:
        with pytest.raises(SettingRefused, match=said):
            trainer(model=None, source=source, options=None)
