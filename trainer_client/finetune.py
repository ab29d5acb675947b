"""One worker of `launch_finetune`: from flags to exit code. The heavy imports are here."""

from __future__ import annotations

import inspect
import json
import os
from dataclasses import replace
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.utils import logging as transformers_logging

from trainer_client.agreement import Agreement
from trainer_client.encoding import BatchSource, Encoder
from trainer_client.finetune_config import ConfigError, FinetuneConfig
from trainer_client.finetune_preference import preference_trainer
from trainer_client.journal import Journal, write_durably
from trainer_client.lastword import told
from trainer_client.mixture import ShardedMixture
from trainer_client.models import add_lora, obtain_model
from trainer_client.options import BidirectionalOptions
from trainer_client.packing import mixes_samples
from trainer_client.processgroup import init_process_group
from trainer_client.running import USER_ERRORS, train_through
from trainer_client.sampleforms import answered, preferred
from trainer_client.session import Session, SessionConfig
from trainer_client.sharddata import ShardEntry, ShardSet, load_shard_config
from trainer_client.trainer import BidirectionalMixin, BidirectionalTrainer

FORMS = {"sft": answered, "dpo": preferred}


def run_worker(config: FinetuneConfig) -> int:
    """Train as the rank that the environment names; reports the end whatever it is, and returns the exit code."""
    threads = int(os.environ.get("OMP_NUM_THREADS") or 0)
    if threads:
        torch.set_num_threads(threads)
    transformers_logging.set_verbosity_warning()
    transformers_logging.disable_progress_bar()
    init_process_group()
    session_config = SessionConfig.from_env(config.run_dir, config.scheduler_endpoint)
    session = Session(session_config, journal=Journal(config.gradient_snapshot_dir / "journal"))
    session.install_signal_handlers()
    return told(session, lambda: _train(config, session), USER_ERRORS)


def _train(config: FinetuneConfig, session: Session) -> int:
    trainer = build_trainer(config, session, load_shard_config(config.shard_config))
    if session.rank == 0:
        planned = replace(config, steps=int(trainer.args.max_steps))
        config.run_dir.mkdir(parents=True, exist_ok=True)
        write_durably(config.run_dir / "config.json", json.dumps(planned.public(), indent=1).encode())
    return train_through(trainer, resume=config.resume, refused=config.refused())


def build_trainer(config: FinetuneConfig, session: Session, entries: list[ShardEntry]) -> BidirectionalMixin:
    """Data, model and trainer (collective)."""
    shards = ShardSet.open(entries, config.eval_fraction, FORMS[config.method])
    weights = {entry.id: entry.weight for entry in entries} | config.weights
    paused = [entry.id for entry in entries if entry.paused]
    mixture = ShardedMixture(
        shards.counts(), global_batch=config.global_batch, seed=config.seed, weights=weights, paused=paused
    )
    config = replace(config, steps=mixture.steps_of(config.epochs)) if config.epochs else config
    model, tokenizer = obtain_model(
        config.model,
        shards.texts(),
        config.gradient_snapshot_dir,
        session.agreement,
        dtype=config.dtype,
        seed=config.seed,
        seq_len=config.seq_len,
    )
    options = BidirectionalOptions(
        snapshot_dir=config.gradient_snapshot_dir,
        snapshot_url=config.snapshot_url,
        snapshot_every=config.snapshot_every,
        export_every=config.export_every,
        eval_every=config.eval_every,
        fidelity=config.fidelity,
        parallel=config.parallel,
        check_every=config.check_every,
        async_snapshots=config.async_snapshots,
        on_nonfinite=config.on_nonfinite,
        flags=config.flags(),
    )
    if config.method == "dpo":
        return preference_trainer(
            config, training_fields(config), model, tokenizer, (mixture, shards), session=session, options=options
        )
    if config.layout == "packed" and "position_ids" not in inspect.signature(model.forward).parameters:
        raise ConfigError(f"--layout packed needs a model that is told positions, which {type(model).__name__} is not")
    if config.lora:
        torch.manual_seed(config.seed)
        model = add_lora(model, config.lora, config.lora_alpha or 2 * config.lora)
    encoder = Encoder(tokenizer, config.seq_len, packed=config.layout == "packed")
    trainer = BidirectionalTrainer(
        model=model,
        args=training_arguments(config),
        processing_class=tokenizer,
        source=BatchSource(mixture, shards, encoder, micro_batch=config.micro_batch),
        session=session,
        options=options,
    )
    if config.layout == "packed":
        _check_packing(trainer, config)
    return trainer


def _check_packing(trainer: BidirectionalTrainer, config: FinetuneConfig) -> None:
    """`ConfigError` where the model lets a sample see the one before it in the row (collective)."""
    mixes = mixes_samples(
        trainer.sample_losses, trainer.model, num_tokens=len(trainer.processing_class), seq_len=config.seq_len
    )
    if trainer.slices is not None:
        trainer.slices.put_away()
    if mixes:
        raise ConfigError(
            f"--layout packed: {type(trainer.model).__name__} mixes the samples of a row (a token's loss depends on what stands "
            "before its sample); use --layout padded"
        )


def training_arguments(config: FinetuneConfig) -> TrainingArguments:
    """Plain Trainer's arguments for the parts of the loop that are its own."""
    return TrainingArguments(**training_fields(config))


def training_fields(config: FinetuneConfig) -> dict[str, Any]:
    """What the arguments of all Trainer classes have in common."""
    return {
        "output_dir": str(config.run_dir / "trainer"),
        "max_steps": config.steps,
        "per_device_train_batch_size": config.micro_batch,
        "learning_rate": config.lr,
        "lr_scheduler_type": config.lr_schedule,
        "warmup_steps": min(config.warmup_steps, config.steps),
        "weight_decay": config.weight_decay,
        "max_grad_norm": config.max_grad_norm,
        "seed": config.seed,
        "bf16": False,
        "use_cpu": not torch.cuda.is_available(),
        "ddp_find_unused_parameters": False,
        "logging_strategy": "steps",
        "logging_steps": 50,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "activation_checkpointing": config.recompute == "layers",
        "activation_checkpointing_kwargs": {"use_reentrant": False},
        "dataloader_num_workers": config.loader_workers,
    }


__all__ = ["Agreement", "build_trainer", "init_process_group", "run_worker", "training_arguments"]
