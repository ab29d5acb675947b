"""Flags of `launch_finetune`, checked before anything heavy is imported."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

METHODS = ("sft", "dpo")
LAYOUTS = ("padded", "packed")
RECOMPUTE = ("none", "layers")
SCHEDULES = ("constant", "constant_with_warmup", "linear", "cosine")


class ConfigError(ValueError):
    """A flag that cannot be followed; ends with exit code 64."""


@dataclass(frozen=True)
class FinetuneConfig:
    """One run. Paths are absolute after `parse`."""

    model: str
    shard_config: Path
    gradient_snapshot_dir: Path
    run_dir: Path
    scheduler_endpoint: str = ""
    max_gpus: int = 0
    spot_threshold: float = 0.7
    steps: int = 300
    epochs: float = 0.0
    global_batch: int = 16
    micro_batch: int = 8
    seq_len: int = 256
    lr: float = 3e-4
    lr_schedule: str = "cosine"
    warmup_steps: int = 20
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    seed: int = 0
    dtype: str = "fp32"
    lora: int = 0
    lora_alpha: int = 0
    resume: bool = False
    snapshot_url: str = ""
    refuse_snapshots: str = ""
    snapshot_every: int = 100
    export_every: int = 100
    eval_every: int = 0
    eval_fraction: float = 0.0
    on_nonfinite: str = "skip"
    fidelity: str = "exact"
    parallel: str = "ddp"
    layout: str = LAYOUTS[0]
    recompute: str = RECOMPUTE[0]
    check_every: int = 50
    async_snapshots: bool = False
    loader_workers: int = 0
    method: str = "sft"
    beta: float = 0.1
    weights: dict[str, float] = field(default_factory=dict)

    def check(self) -> None:
        """Raise `ConfigError` naming the first flag that is out of range."""
        for name in ("steps", "global_batch", "micro_batch", "check_every"):
            _require(getattr(self, name) >= 1, name, "must be at least 1")
        for name in (
            "snapshot_every",
            "export_every",
            "eval_every",
            "lora",
            "max_gpus",
            "warmup_steps",
            "loader_workers",
        ):
            _require(getattr(self, name) >= 0, name, "must not be negative")
        _require(0 <= self.epochs < float("inf"), "epochs", "must not be negative (0: a number of steps)")
        _require(self.seq_len >= 8, "seq_len", "must be at least 8")
        _require(0 < self.lr < 10, "lr", "must lie between 0 and 10")
        _require(0 < self.beta < float("inf"), "beta", "must be above 0")
        _require(0 <= self.spot_threshold <= 1, "spot_threshold", "must lie between 0 and 1")
        _require(0 <= self.eval_fraction < 1, "eval_fraction", "must lie in 0 <= fraction < 1")
        _require(self.max_grad_norm >= 0, "max_grad_norm", "must not be negative (0 for no clipping)")
        _require(not self.eval_every or self.eval_fraction > 0, "eval_every", "needs --eval_fraction above 0")
        _require(self.seed >= 0, "seed", "must not be negative")
        _require(self.method == "sft" or self.layout == "padded", "layout", "packed is for --method sft")
        _require(self.shard_config.is_file(), "shard_config", f"{self.shard_config} is not a file")

    def refused(self) -> list[str]:
        """Names of snapshots that are not to be resumed from."""
        return [name for name in self.refuse_snapshots.split(",") if name]

    def flags(self) -> dict[str, Any]:
        """What the options and arguments of a trainer do not hold, for its snapshots."""
        names = ("model", "epochs", "method", "seq_len", "dtype", "lora", "layout", "recompute", "eval_fraction")
        alpha = self.lora and (self.lora_alpha or 2 * self.lora)
        beta = {"beta": self.beta} if self.method == "dpo" else {}
        return {name: getattr(self, name) for name in names} | {"lora_alpha": alpha} | beta

    def public(self) -> dict[str, Any]:
        """JSON-compatible, for `config.json` in the run directory."""
        return {key: str(value) if isinstance(value, Path) else value for key, value in asdict(self).items()}


def _require(fine: bool, name: str, what: str) -> None:
    if not fine:
        raise ConfigError(f"--{name} {what}")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ConfigError(f"{message}\n{self.format_usage().strip()}")


def parser() -> argparse.ArgumentParser:
    """The command line; defaults are those of `FinetuneConfig`."""
    default = FinetuneConfig("", Path(), Path(), Path())
    made = _Parser(prog="python -m trainer_client.launch_finetune", description=__doc__)
    add = made.add_argument
    add("--model", required=True, help="folder, hub id, or tiny:SIZE (tiny:4m: a small Llama from scratch)")
    add("--shard_config", required=True, type=Path, help="shard_config.yaml")
    add("--gradient_snapshot_dir", required=True, type=Path, help="snapshots, exports and journal of the job")
    add("--scheduler_endpoint", default="", help="address of the server (or COUNTERFLOW_URL)")
    add(
        "--max_gpus", type=int, default=0, help="workers when started by hand; 0: all GPUs, or up to 2 processes on CPU"
    )
    add("--spot_threshold", type=float, default=default.spot_threshold, help="availability that a spot offer must have")
    add("--run_dir", type=Path, help="logs, spool, markers (default COUNTERFLOW_RUN_DIR or GRADIENT_SNAPSHOT_DIR/run)")
    for name, kind, text in (
        ("steps", int, "optimizer steps"),
        ("epochs", float, "in the place of --steps: passes over the samples that there are at the start, 0 for none"),
        ("global_batch", int, "samples of an optimizer step, over all workers"),
        ("micro_batch", int, "samples of one forward pass"),
        ("seq_len", int, "tokens of a sample at most"),
        ("lr", float, "peak learning rate"),
        ("warmup_steps", int, "steps of linear warm-up"),
        ("weight_decay", float, "AdamW weight decay"),
        ("max_grad_norm", float, "gradient norm to clip to, 0 for none"),
        ("seed", int, "seed of data order, initial weights and dropout"),
        ("lora", int, "rank of LoRA adapters, 0 for full fine-tuning"),
        ("lora_alpha", int, "LoRA alpha, 0 for twice the rank"),
        ("snapshot_every", int, "steps between snapshots, 0 for none"),
        ("check_every", int, "micro-steps between looks for snapshot directives inside a step"),
        ("loader_workers", int, "threads of each worker that make the next micro-batches ahead, 0 for none"),
        ("export_every", int, "steps between exports of the weights, 0 for none"),
        ("eval_every", int, "steps between evaluations, 0 for none"),
        ("eval_fraction", float, "share of each shard held out for evaluation"),
        ("beta", float, "DPO: how strongly the model is held to the one it began as"),
    ):
        add(f"--{name}", type=kind, default=getattr(default, name), help=f"{text} (default {getattr(default, name)})")
    add("--method", choices=METHODS, default=default.method, help="answers to imitate, or pairs of answers to prefer")
    add(
        "--layout",
        choices=LAYOUTS,
        default=default.layout,
        help="a row for each sample, or whole samples packed into rows",
    )
    add(
        "--recompute",
        nargs="?",
        choices=RECOMPUTE,
        const="layers",
        default=default.recompute,
        help="activations of each layer are computed again in the backward pass: less memory for more time",
    )
    add("--lr_schedule", choices=SCHEDULES, default=default.lr_schedule)
    add("--dtype", choices=("fp32", "bf16"), default=default.dtype)
    add("--on_nonfinite", choices=("skip", "apply", "stop"), default="skip", help="what to do with a NaN gradient")
    add(
        "--fidelity",
        choices=("exact", "same_world"),
        default=default.fidelity,
        help="equal bits after a resume with any number of workers, or with as many only (least memory)",
    )
    add(
        "--parallel",
        choices=("ddp", "fsdp"),
        default=default.parallel,
        help="each worker holds a copy of the model, or a slice of it, its moments and its gradients",
    )
    add("--async_snapshots", action="store_true", help="copy the state in memory and write it while training goes on")
    add(
        "--snapshot_url", default="", help="fsspec address for snapshots, such as s3://bucket/job (default: the folder)"
    )
    add("--refuse_snapshots", default="", help="names of snapshots, with commas, that are not to be resumed from")
    add("--resume", action="store_true", help="go on from the newest snapshot that verifies, if there is one")
    add("--weights", type=json.loads, default={}, help="JSON object of sampling weights, such as '{\"de_ui\": 2.0}'")
    return made


def parse(argv: Sequence[str], default_run_dir: str = "") -> FinetuneConfig:
    """Flags to a checked config; `ConfigError` says what is wrong."""
    flags = vars(parser().parse_args(list(argv)))
    flags["run_dir"] = flags["run_dir"] or Path(default_run_dir or flags["gradient_snapshot_dir"] / "run")
    for name in ("shard_config", "gradient_snapshot_dir", "run_dir"):
        flags[name] = flags[name].resolve()
    if not isinstance(flags["weights"], dict):
        raise ConfigError("--weights must be a JSON object of shard: number")
    config = FinetuneConfig(**flags)
    config.check()
    return config
