"""A resume with other flags goes on as the run was begun, takes them, or refuses them: never without a word."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer.paths import COUNTS
from tests.trainer.worlds import base_config, run_world, train_each, write_shards

pytestmark = pytest.mark.timeout(300)

KEPT: dict[str, Any] = {
    "global_batch": 12,
    "seed": 5,
    "lr": 1e-3,
    "lr_schedule": "constant",
    "warmup_steps": 0,
    "weight_decay": 0.1,
    "max_grad_norm": 1e-4,
    "weights": {"a": 2.0, "b": 3.0},
}
TAKEN: dict[str, Any] = {
    "model": "tiny:60k,vocab=512",
    "micro_batch": 3,
    "seq_len": 40,
    "layout": "packed",
    "recompute": "layers",
    "fidelity": "same_world",
    "parallel": "fsdp",
    "on_nonfinite": "apply",
    "snapshot_every": 7,
    "export_every": 8,
    "eval_every": 9,
    "check_every": 10,
    "async_snapshots": True,
}
REFUSED: dict[str, Any] = {
    "steps": 6,
    "epochs": 3.0,
    "method": "dpo",
    "dtype": "bf16",
    "lora": 4,
    "lora_alpha": 2,
    "eval_fraction": 0.3,
    "beta": 0.5,
}
ORDERS = [
    {"id": "d1", "action": "set_weights", "args": {"weights": {"b": 4.0}}, "not_before_step": 1},
    {"id": "d2", "action": "set_training", "args": {"lr_factor": 0.3}, "not_before_step": 1},
]


def test_flags_of_a_resume_that_are_kept_from_the_snapshot_are_named(tmp_path: Path) -> None:
    """Data, dropout, rate, schedule, clipping and weights are those of the run that was never stopped.

    What a directive has changed is not named.
    """
    write_shards(tmp_path, COUNTS)
    same = {"steps": 5, "gradient_snapshot_dir": tmp_path / "parts"}
    whole = base_config(tmp_path, steps=5, gradient_snapshot_dir=tmp_path / "whole")
    cases = [
        {"config": whole, "directives": ORDERS, "dropout": 0.1},
        {"config": base_config(tmp_path, **same), "directives": ORDERS, "dropout": 0.1, "leave_at": 2},
        {"config": base_config(tmp_path, **same, resume=True), "dropout": 0.1, "leave_at": 3},
        {"config": base_config(tmp_path, **same | KEPT, resume=True), "dropout": 0.1},
    ]
    ((uninterrupted, _, alike, resumed),) = run_world(1, train_each, cases, folder=tmp_path)
    assert (resumed["start"], resumed["code"]) == (3, 0)
    assert not [text for _, text in alike["said"] if "the snapshot:" in text]
    ((level, said),) = [(level, text) for level, text in resumed["said"] if "the snapshot:" in text]
    assert level == "warning"
    for words in ("global_batch 6 (given: 12)", "seed 0 (given: 5)", "lr 0.003 (given: 0.001)"):
        assert words in said
    for words in (
        "lr_schedule cosine (given: constant)",
        "warmup_steps 2 (given: 0)",
        "max_grad_norm 1.0 (given: 0.0001)",
    ):
        assert words in said
    assert "weight_decay 0 (given: 0.1)" in said
    assert "weight of a 1 (given: 2);" in said
    assert np.array_equal(resumed["weights"], uninterrupted["weights"])
    assert resumed["steps"][4]["lr"] == uninterrupted["steps"][4]["lr"]


def _refused(folder: Path) -> dict[str, str]:
    """What is said to a resume with each of these flags alone, by a run of the same flags otherwise."""
    from tests.trainer.worlds import train
    from trainer_client.finetune_config import ConfigError

    begun: dict[str, dict[str, Any]] = {"lora_alpha": {"lora": 2}, "beta": {"method": "dpo"}}
    found = {}
    for name, value in REFUSED.items():
        same = begun.get(name, {})
        config = base_config(folder, **same, gradient_snapshot_dir=folder / f"snapshots {same}")
        if not config.gradient_snapshot_dir.exists():
            assert train(config, leave_at=1)["code"] == 81
        try:
            train(replace(config, resume=True, **{name: value}))
        except ConfigError as error:
            found[name] = str(error)
    return found


def _as_pairs_too(folder: Path) -> None:
    """Samples of either method."""
    for path in (folder / "data").iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        pairs = [row | {"chosen": row["response"], "rejected": "no"} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in pairs))


def test_flags_that_cannot_go_on_with_a_snapshot_are_refused_by_name(tmp_path: Path) -> None:
    write_shards(tmp_path, COUNTS)
    _as_pairs_too(tmp_path)
    (found,) = run_world(1, _refused, tmp_path, folder=tmp_path)
    assert found.keys() == REFUSED.keys()
    for name, said in found.items():
        assert f"--{name} {REFUSED[name]}: the snapshot " in said


def test_flags_that_are_taken_are_named(tmp_path: Path) -> None:
    write_shards(tmp_path, COUNTS)
    cases = [
        {"config": base_config(tmp_path, eval_fraction=0.2), "leave_at": 1},
        {"config": base_config(tmp_path, eval_fraction=0.2, resume=True, **TAKEN), "leave_at": 2},
    ]
    ((_, other),) = run_world(1, train_each, cases, folder=tmp_path)
    assert other["start"] == 1
    ((level, said),) = [(level, text) for level, text in other["said"] if "than before the snapshot" in text]
    assert level == "warning"
    for name, value in TAKEN.items():
        assert f"{name} {value} (before: " in said


def _save_model(folder: Path, seed: int) -> None:
    """A model of the same shape for any seed, and the same tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from trainer_client.models import train_tokenizer

    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    LlamaForCausalLM(LlamaConfig(vocab_size=512, pad_token_id=0, **sizes)).save_pretrained(folder)
    train_tokenizer(["red green blue w1 w2 w3 say"] * 10, 512).save_pretrained(folder)


def _without_frozen_digests(snapshots: Path) -> None:
    """As an earlier release wrote it."""
    from trainer_client.manifests import MANIFEST, manifest_bytes, manifest_read, measure

    (path,) = snapshots.glob("step-*")
    head = json.loads((path / "state.json").read_text())
    assert head.pop("frozen")
    (path / "state.json").write_text(json.dumps(head))
    manifest = manifest_read(path.name, (path / MANIFEST).read_bytes)
    manifest["files"]["state.json"] = measure(path / "state.json")
    (path / MANIFEST).write_bytes(manifest_bytes(manifest))


def _begun_from_another(folder: Path) -> dict[str, dict[str, Any]]:
    """By kind of run, what comes of a resume with: other weights at the same path, the same at another, and without digests."""
    from tests.trainer.worlds import train
    from trainer_client.agreement import Agreement
    from trainer_client.finetune_config import ConfigError

    agreement, found = Agreement(), dict[str, dict[str, Any]]()
    base, moved = folder / "base", folder / "moved"

    def alone(work: Any, *args: Any, **kwargs: Any) -> None:
        if agreement.rank == 0:
            work(*args, **kwargs)
        agreement.barrier()

    def resumed(config: Any, **changes: Any) -> Any:
        try:
            return train(replace(config, resume=True, **changes))
        except ConfigError as error:
            return str(error)

    alone(_save_model, moved, 0)
    for kind, given in FROZEN.items():
        alone(shutil.copytree, moved, base, dirs_exist_ok=True)
        config = base_config(
            folder, model=str(base), steps=3, micro_batch=1, gradient_snapshot_dir=folder / kind, **given
        )
        found[kind] = {}
        if kind == "base":
            found[kind]["whole"] = train(replace(config, gradient_snapshot_dir=folder / "whole"))
        train(config, leave_at=(2, 0))
        alone(_save_model, base, 9)
        found[kind]["replaced"] = resumed(config)
        found[kind]["moved"] = resumed(config, model=str(moved))
    before = base_config(folder, model=str(base), steps=3, gradient_snapshot_dir=folder / "before", lora=4)
    train(before, leave_at=2)
    alone(_without_frozen_digests, folder / "before")
    found["base"]["old, moved"] = resumed(before, model=str(moved))
    found["base"]["old"] = resumed(before)
    return found


FROZEN: dict[str, dict[str, Any]] = {
    "base": {"lora": 4},
    "base in slices": {"lora": 4, "dtype": "bf16", "parallel": "fsdp"},
    "reference": {"method": "dpo"},
    "reference in slices": {"method": "dpo", "parallel": "fsdp"},
}


def test_weights_that_are_not_trained_have_to_be_those_that_the_run_began_from(tmp_path: Path) -> None:
    """Wherever they lie: a base model under adapters and the reference of pairs, as copies and in slices."""
    write_shards(tmp_path, COUNTS)
    _as_pairs_too(tmp_path)
    for rank in run_world(2, _begun_from_another, tmp_path, folder=tmp_path):
        for kind, seen in rank.items():
            what = "the weights of the reference model" if "reference" in kind else "the weights that are not trained"
            said = f"--model {tmp_path / 'base'}: {what} are others than those that the snapshot's run began from"
            assert seen["replaced"].startswith(said), kind
            assert (seen["moved"]["start"], seen["moved"]["code"]) == (2, 0), kind
        assert np.array_equal(rank["base"]["moved"]["weights"], rank["base"]["whole"]["weights"])
        old = rank["base"]["old"]
        assert (old["start"], old["code"]) == (2, 0)
        assert [
            text for _, text in old["said"] if text.startswith("not checked: whether the weights that are not trained")
        ]
        assert rank["base"]["old, moved"].startswith(f"--model {tmp_path / 'moved'}: the snapshot is of a run with")


def test_every_flag_has_its_way_on_a_resume() -> None:
    from trainer_client.finetune_config import FinetuneConfig
    from trainer_client.kept import ON_RESUME

    names = sorted(name for group in ON_RESUME.values() for name in group)
    assert names == sorted(part.name for part in fields(FinetuneConfig))
    assert (set(ON_RESUME["kept"]), set(ON_RESUME["taken"])) == (set(KEPT), set(TAKEN))
    assert set(ON_RESUME["refused"]) == set(REFUSED)
