"""Runs of trl's trainers in small worlds: their data, and how they are made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

WORDS = ["red", "green", "blue", "amber", "white"]


def write_pairs(folder: Path, counts: dict[str, int]) -> Path:
    """Shards of `prompt`, `chosen`, `rejected`, of unequal lengths."""

    def pair(shard: int, index: int) -> dict[str, Any]:
        words = [WORDS[(shard + index + k) % 5] for k in range(2 + index % 4)]
        return {"prompt": f"say {words[0]}", "chosen": " ".join(words), "rejected": " ".join(reversed(words)) + " no"}

    return _write(folder, counts, pair)


def write_forms(folder: Path, counts: dict[str, int]) -> Path:
    """Shards of which each has another form that SFTTrainer knows."""

    def sample(shard: int, index: int) -> dict[str, Any]:
        text = " ".join(WORDS[(shard + index + k) % 5] for k in range(2 + index % 5))
        forms = [{"text": text}, {"prompt": "say", "completion": f" {text}"}, {"prompt": "say", "response": f" {text}"}]
        return forms[shard % 3]

    return _write(folder, counts, sample)


def _write(folder: Path, counts: dict[str, int], sample: Any) -> Path:
    (folder / "data").mkdir(parents=True, exist_ok=True)
    lines = ["shards:"]
    for shard, (name, count) in enumerate(counts.items()):
        rows = [{"id": f"{name}-{index}"} | sample(shard, index) for index in range(count)]
        (folder / "data" / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines.append(f"  - {{id: {name}, source: test, size_mb: 0.01, path: data/{name}.jsonl}}")
    (folder / "shard_config.yaml").write_text("\n".join(lines) + "\n")
    return folder / "shard_config.yaml"


def build_sft(config: Any, session: Any, entries: Any, **settings: Any) -> Any:
    """`CounterflowSFTTrainer` on the model that the launcher would take."""
    from trl import SFTConfig

    from trainer_client.encoding import BatchSource
    from trainer_client.finetune import training_fields
    from trainer_client.mixture import ShardedMixture
    from trainer_client.models import lora_config, obtain_model
    from trainer_client.options import BidirectionalOptions
    from trainer_client.sampleforms import conversed
    from trainer_client.sharddata import ShardSet
    from trainer_client.trl import CounterflowSFTTrainer, SupervisedEncoder

    shards = ShardSet.open(entries, config.eval_fraction, conversed)
    mixture = ShardedMixture(shards.counts(), global_batch=config.global_batch, seed=config.seed)
    model, tokenizer = obtain_model(
        config.model,
        shards.texts(),
        config.gradient_snapshot_dir,
        session.agreement,
        dtype="fp32",
        seed=config.seed,
        seq_len=config.seq_len,
    )
    fields = training_fields(config) | {"bf16": config.dtype == "bf16"}  # autocast, as SFTConfig has it by default
    args = SFTConfig(**fields, max_length=config.seq_len, **settings)
    return CounterflowSFTTrainer(
        model=model,
        args=args,
        processing_class=tokenizer,
        peft_config=lora_config(config.lora, 2 * config.lora) if config.lora else None,
        source=BatchSource(mixture, shards, SupervisedEncoder(tokenizer, args), micro_batch=config.micro_batch),
        session=session,
        options=BidirectionalOptions(
            snapshot_dir=config.gradient_snapshot_dir,
            snapshot_every=config.snapshot_every,
            export_every=0,
            eval_every=config.eval_every,
            fidelity=config.fidelity,
            parallel=config.parallel,
            check_every=config.check_every,
        ),
    )
