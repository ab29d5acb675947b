"""trl's SFTTrainer and DPOTrainer on a mixture: resized at any micro-batch, in both fidelities, and equal to trl's own numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.paths import Course, assert_equal_bits, assert_nothing_lost, run_paths, starts
from tests.trainer.trlruns import build_sft, write_forms, write_pairs
from tests.trainer.worlds import base_config, run_world, train_each

pytestmark = pytest.mark.timeout(300)

HELD_OUT = {"eval_fraction": 0.2, "eval_every": 2}
FIELDS = {"steps": 3, "global_batch": 14, "micro_batch": 2}


def test_sft_is_resized_inside_a_step_and_loses_nothing(tmp_path: Path) -> None:
    """Two workers, one, three, with stops in mid-accumulation; adapters in bf16 to the bit; the same in slices, to the bit."""
    slices = {"parallel": "fsdp", "fidelity": "exact"}
    found = run_paths(
        tmp_path,
        {
            "sliced_one": Course((1,), (), slices | HELD_OUT),
            "sliced": Course((2, 3), ((1, 0),), slices | HELD_OUT),
            "sliced_lora_one": Course((1,), (), slices | {"dtype": "bf16", "lora": 4}),
            "sliced_lora": Course((3, 2), ((1, 0),), slices | {"dtype": "bf16", "lora": 4}),
            "one": Course((1,)),
            "resized": Course((2, 1, 3), ((1, 0), (1, 2)), {"loader_workers": 2}),
            "bf16": Course((1,), (), {"fidelity": "exact", "dtype": "bf16", "lora": 4}),
            "bf16_resized": Course((3, 2), ((1, 0),), {"fidelity": "exact", "dtype": "bf16", "lora": 4}),
        },
        write=write_forms,
        build=build_sft,
        **FIELDS,
    )
    assert starts(found["resized"]) == [(0, 0), (1, 4), (1, 5)]
    assert_nothing_lost(found["resized"], found["one"][0])
    assert_nothing_lost(found["bf16_resized"], found["bf16"][0])
    assert_equal_bits(found["bf16_resized"], found["bf16"][0])
    for name in ("sliced", "sliced_lora"):
        assert list((tmp_path / name).rglob("slices-0001.pt"))
        assert_nothing_lost(found[name], found[f"{name}_one"][0])
        assert_equal_bits(found[name], found[f"{name}_one"][0])
    assert_same_evaluations(found["sliced"][-1][0], found["sliced_one"][0][0])


def test_dpo_is_resized_inside_a_step_and_loses_nothing(tmp_path: Path) -> None:
    """Full, against a model of its own as reference, and with adapters, against the model without them; in slices, to the bit."""
    slices = {"parallel": "fsdp", "fidelity": "exact"}
    lora = slices | {"lora": 4, "dtype": "bf16"} | HELD_OUT
    found = run_paths(
        tmp_path,
        {
            "sliced_one": Course((1,), (), slices | HELD_OUT),
            "sliced": Course((2, 3), ((1, 0),), slices | HELD_OUT),
            "sliced_lora_one": Course((1,), (), lora),
            "sliced_lora": Course((3, 2), ((1, 0),), lora),
            "one": Course((1,), (), HELD_OUT),
            "resized": Course((2, 1, 3), ((1, 0), (1, 2)), HELD_OUT),
            "exact": Course((1,), (), {"fidelity": "exact", "lora": 4}),
            "exact_resized": Course((2, 3), ((1, 0),), {"fidelity": "exact", "lora": 4}),
        },
        write=write_pairs,
        method="dpo",
        **FIELDS,
    )
    assert starts(found["resized"]) == [(0, 0), (1, 4), (1, 5)]
    assert_nothing_lost(found["resized"], found["one"][0])
    (whole,) = found["one"][0]
    assert_same_evaluations(found["resized"][-1][0], whole)
    assert all(pairs == samples for _, pairs, samples in whole["evaluations"][3].values())
    assert_nothing_lost(found["exact_resized"], found["exact"][0])
    assert_equal_bits(found["exact_resized"], found["exact"][0])
    for name in ("sliced", "sliced_lora"):
        assert list((tmp_path / name).rglob("slices-0001.pt"))
        assert_nothing_lost(found[name], found[f"{name}_one"][0])
        assert_equal_bits(found[name], found[f"{name}_one"][0])
        assert_same_evaluations(found[name][-1][0], found[f"{name}_one"][0][0])


def assert_same_evaluations(found: dict[str, Any], whole: dict[str, Any]) -> None:
    """By shard, up to rounding; `found` took part from the second step on."""
    assert sorted(whole["evaluations"]) == [2, 3]
    for step, shards in whole["evaluations"].items():
        for name, (loss, counts, samples) in shards.items():
            assert found["evaluations"][step][name] == (pytest.approx(loss, rel=1e-5), counts, samples)
            assert samples > 0


def test_pairs_join_while_it_trains_and_samples_of_another_form_do_not(tmp_path: Path) -> None:
    write_pairs(tmp_path, {"a": 8})
    args = {"shard": "new", "mode": "replace", "num_samples": 3, "weight": 10.0}
    order = [{"id": "d1", "action": "add_shard", "args": args, "not_before_step": 1}]
    fields = {"method": "dpo", "steps": 3, "global_batch": 4, "micro_batch": 2}
    pairs = [{"id": f"new-{at}", "prompt": "say", "chosen": "red", "rejected": f"no {at}"} for at in range(3)]
    answers = [{"id": pair["id"], "prompt": "say", "response": "red"} for pair in pairs]
    cases = [
        {
            "config": base_config(tmp_path, gradient_snapshot_dir=tmp_path / name, **fields),
            "directives": order,
            "data": b"".join(json.dumps(row).encode() + b"\n" for row in rows),
        }
        for name, rows in (("pairs", pairs), ("answers", answers))
    ]
    ((joined, refused),) = run_world(1, train_each, cases, folder=tmp_path)
    assert [(ack.outcome, ack.step) for ack in joined["acks"]] == [("applied", 1)]
    assert {name for step in (1, 2) for _, name, _ in joined["ledger"][step]} >= {"new"}
    assert [ack.outcome for ack in refused["acks"]] == ["refused"]
    assert "'chosen' is missing" in refused["acks"][0].detail


CHAT = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _as_trl_has_it(folder: Path, method: str) -> list[tuple[str, object, object]]:
    """(what, ours, trl's) for encodings of all forms, and for the loss of one batch."""
    from datasets import Dataset

    from tests.trainer.trlruns import build_sft
    from trainer_client.finetune import build_trainer
    from trainer_client.session import Session, SessionConfig
    from trainer_client.sharddata import load_shard_config
    from trainer_client.trainer import BidirectionalMixin
    from trainer_client.trl import PreferenceEncoder

    config = base_config(folder, method=method)
    entries = load_shard_config(config.shard_config)
    session = Session(SessionConfig(config.run_dir))
    trainer = (build_trainer if method == "dpo" else build_sft)(config, session, entries)
    tokenizer, args = trainer.processing_class, trainer.args
    tokenizer.chat_template = CHAT
    encoder = PreferenceEncoder(tokenizer, args) if method == "dpo" else trainer.source.encoder
    say, red, long = "say it ", "red red blue", "green " * 60
    user, answers = [{"role": "user", "content": say}], [[{"role": "assistant", "content": t}] for t in (red, long)]
    forms: list[list[dict[str, object]]] = [
        [{"prompt": say, "chosen": red, "rejected": "no"}, {"prompt": say + red, "chosen": long, "rejected": red}],
        [{"prompt": user, "chosen": answers[0], "rejected": answers[1]}],
        [{"chosen": user + answers[0], "rejected": user + answers[1]}],
    ]
    if method == "sft":
        forms = [
            [{"text": red}, {"text": long}],
            [{"prompt": say, "completion": red}, {"prompt": say, "completion": long}],
            [{"messages": user + answers[0]}],
            [{"prompt": user, "completion": answers[1]}],
        ]
    found: list[tuple[str, object, object]] = []
    for form in forms:
        trainer.completion_only_loss = "prompt" in form[0]
        extra = (args, False, None, "train") if method == "sft" else (args, "train")
        prepared = trainer._prepare_dataset(Dataset.from_list(form), tokenizer, *extra)
        for ours, theirs in zip(encoder.encode(form), prepared, strict=True):
            found += [(name, ours[name], theirs[name]) for name in ours]
    encoded = encoder.encode(forms[0])
    fields, num_supervised = encoder.collate(encoded)
    theirs = trainer.data_collator(encoded)
    found += [(name, fields[name].tolist(), theirs[name].tolist()) for name in theirs]
    losses, counts = trainer.sample_losses(trainer.model.train(), fields)
    if method == "dpo":
        trainer.precompute_ref_logps = False
    own = super(BidirectionalMixin, trainer).compute_loss(trainer.model, dict(fields))
    assert int(counts.sum()) == num_supervised
    return [*found, ("loss", round(float(losses.sum() / num_supervised), 5), round(float(own), 5))]


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_tokens_padding_and_loss_are_those_of_trl(tmp_path: Path, method: str) -> None:
    (write_pairs if method == "dpo" else write_forms)(tmp_path, {"a": 9})
    (found,) = run_world(1, _as_trl_has_it, tmp_path, method, folder=tmp_path)
    assert len(found) > 8
    for what, ours, theirs in found:
        assert ours == theirs, what


def _refusals(folder: Path) -> list[str]:
    from tests.trainer.trlruns import build_sft
    from trainer_client.session import Session, SessionConfig
    from trainer_client.sharddata import load_shard_config

    config, said = base_config(folder, parallel="fsdp"), []
    for settings in (
        {"packing": True, "padding_free": True},
        {"assistant_only_loss": True},
        {"label_smoothing_factor": 0.1},
        {"bf16_full_eval": True},
    ):
        try:
            build_sft(
                config, Session(SessionConfig(config.run_dir)), load_shard_config(config.shard_config), **settings
            )
        except ValueError as error:
            said.append(str(error))
    return said


def test_what_cannot_be_followed_is_refused_by_name(tmp_path: Path) -> None:
    write_forms(tmp_path, {"a": 3})
    ((packing, masks, smoothing, placed),) = run_world(1, _refusals, tmp_path, folder=tmp_path)
    assert "packing: a row of several samples" in packing
    assert "padding_free: rows" in packing
    assert "assistant_only_loss: give prompt and completion" in masks
    assert "label_smoothing_factor take two forward passes" in smoothing
    assert "placed while it is cut" in placed
