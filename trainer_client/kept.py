"""What a resumed run does with settings that its snapshot has otherwise: kept and said, taken and said, or refused by name.

What decides about the course of the run is kept, so that a resume goes on as if nothing had happened. What a run may be done with
from now on is taken. What would make the snapshot's state mean something else is refused. `ON_RESUME` has each flag of
`launch_finetune`; `docs/trainer.md` shows the same to people.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from trainer_client.finetune_config import ConfigError
from trainer_client.training_state import LoadedState

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

Settings = dict[str, Any]

ON_RESUME: dict[str, tuple[str, ...]] = {
    "kept": ("global_batch", "seed", "lr", "lr_schedule", "warmup_steps", "weight_decay", "max_grad_norm", "weights"),
    "taken": (
        "model", "micro_batch", "seq_len", "layout", "recompute", "fidelity", "parallel", "on_nonfinite", "snapshot_every",
        "export_every", "eval_every", "check_every", "async_snapshots",
    ),
    "refused": ("steps", "epochs", "method", "beta", "dtype", "lora", "lora_alpha", "eval_fraction"),
    "of the attempt": (
        "shard_config", "gradient_snapshot_dir", "snapshot_url", "run_dir", "scheduler_endpoint", "max_gpus", "spot_threshold",
        "resume", "refuse_snapshots", "loader_workers",
    ),
}  # fmt: skip
_ARGUMENTS = {"lr_schedule": "lr_scheduler_type", "warmup_steps": "warmup_steps", "max_grad_norm": "max_grad_norm"}
_PLACES = ("snapshot_dir", "snapshot_url", "flags")


def flags_of(trainer: BidirectionalMixin) -> Settings:
    """What the run is done with beside data, rate and seed, by name, for its snapshots. Of a loop's schedule nothing is known."""
    options, args = trainer.options, trainer.args
    found = {part.name: getattr(options, part.name) for part in fields(options) if part.name not in _PLACES}
    given = {name: getattr(args, argument) for name, argument in _ARGUMENTS.items() if hasattr(args, argument)}
    plain = {name: getattr(value, "value", value) for name, value in given.items()}
    return found | {"micro_batch": trainer.source.micro_batch} | plain | dict(options.flags)


def settings_given(trainer: BidirectionalMixin) -> Settings:
    """By name, before anything is put back. A Trainer has no schedule then; a loop of one's own has no rate in its arguments."""
    args, mixture = trainer.args, trainer.source.mixture.state_dict(0)
    is_loop = not hasattr(args, "learning_rate")
    rate = _first(getattr(trainer.lr_scheduler, "base_lrs", None)) if is_loop else float(args.learning_rate)
    decay = _decay(trainer.optimizer.param_groups) if is_loop else float(args.weight_decay)
    return flags_of(trainer) | _settings(mixture, args.seed, rate, decay)


def keep_end(trainer: BidirectionalMixin, head: Mapping[str, Any]) -> None:
    """A run of epochs ends where it was to end when it began, whatever its files have gained since."""
    if trainer.options.flags.get("epochs"):
        trainer.args.max_steps = int(head["planned_steps"])


def take_over(trainer: BidirectionalMixin, given: Settings, head: Mapping[str, Any]) -> None:
    """Before there is a schedule: what of the arguments is kept. `ConfigError` names settings that do not go with the snapshot."""
    flags = head.get("flags", {})
    # Without digests to compare (`frozen`) the model goes by its name.
    by_name = not head.get("frozen") and (flags.get("lora") or flags.get("method") == "dpo")
    fixed = {*ON_RESUME["refused"], *(("model",) if by_name else ())}
    wrong = [
        f"--{name} {given[name]}: the snapshot is of a run with {flags[name]}"
        for name in sorted(fixed)
        if name in flags and name in given and flags[name] != given[name]
    ]
    planned, steps = head.get("planned_steps"), trainer.args.max_steps
    if planned is not None and planned != steps:
        wrong.append(
            f"--steps {steps}: the snapshot is of a run planned for {planned} (`max_steps` of a Trainer, `steps` of a loop)"
        )
    if wrong:
        raise ConfigError(f"{'; '.join(wrong)}; give the same, or leave out --resume")
    for name, argument in _ARGUMENTS.items():
        if name in flags and hasattr(trainer.args, argument):
            setattr(trainer.args, argument, flags[name])


def say_kept(trainer: BidirectionalMixin, given: Settings, loaded: LoadedState) -> None:
    """Where the snapshot has something else than what is `given`. What directives have changed since is passed over."""
    head, tensors = loaded.head, loaded.tensors
    rate = _first(tensors["scheduler"].get("base_lrs"))
    planned = None if rate is None else rate / float(head["training"]["lr_factor"])
    saved = _settings(head["mixture"], head["seed"], planned, _decay(tensors["optimizer"]["param_groups"]))
    saved = head.get("flags", {}) | saved
    passed_over = {*_changed(head["mixture"]["log"]), *(["max_grad_norm"] if head["training"]["max_grad_norm"] else [])}
    other = [name for name in saved if name in given and saved[name] != given[name] and name not in passed_over]
    taken = [f"{name} {given[name]} (before: {saved[name]})" for name in other if _is_taken(name)]
    kept = [f"{name} {saved[name]} (given: {given[name]})" for name in other if not _is_taken(name)]
    if kept:
        what = ", ".join(kept)
        trainer.session.note(f"kept from the snapshot: {what}; directives can change data and rate of a run")
    if taken:
        trainer.session.note(f"other than before the snapshot: {', '.join(taken)}")


def _is_taken(name: str) -> bool:
    return name not in ON_RESUME["kept"] and not name.startswith(("weight of ", "pause of "))


def _settings(mixture: Mapping[str, Any], seed: int, rate: float | None, decay: float) -> Settings:
    """In words; a rate as far as a product and a quotient leave it."""
    shards = list(zip(mixture["names"], mixture["weight"], mixture["paused"], strict=True))
    found = {"global_batch": str(mixture["global_batch"]), "seed": str(seed), "weight_decay": f"{decay:.9g}"}
    found |= {} if rate is None else {"lr": f"{rate:.9g}"}
    found |= {f"weight of {name}": f"{weight:.9g}" for name, weight, _ in shards}
    return found | {f"pause of {name}": "on" if paused else "off" for name, _, paused in shards}


def _changed(log: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Names of what directives have set."""
    for change in log:
        if change["action"] == "set_global_batch":
            yield "global_batch"
        elif change["action"] == "set_weights":
            yield from (f"weight of {name}" for name in change["weights"])
        else:
            yield f"pause of {change['shard']}"
            if change.get("weight") is not None:
                yield f"weight of {change['shard']}"


def _first(rates: Any) -> float | None:
    return float(rates[0]) if rates else None


def _decay(groups: Iterable[Mapping[str, Any]]) -> float:
    return max(float(group.get("weight_decay", 0.0)) for group in groups)
