"""What a resumed run keeps from its snapshot, whatever it is given now: said, so that nobody waits for it to change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainer_client.training_state import LoadedState

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

Settings = dict[str, Any]


def settings_given(trainer: BidirectionalMixin) -> Settings:
    """By name, before anything is put back. A Trainer has no schedule then; a loop of one's own has no rate in its arguments."""
    args, mixture = trainer.args, trainer.source.mixture.state_dict(0)
    is_loop = not hasattr(args, "learning_rate")
    rate = _first(getattr(trainer.lr_scheduler, "base_lrs", None)) if is_loop else float(args.learning_rate)
    decay = _decay(trainer.optimizer.param_groups) if is_loop else float(args.weight_decay)
    return _settings(mixture, args.seed, rate, decay)


def say_kept(trainer: BidirectionalMixin, given: Settings, loaded: LoadedState) -> None:
    """Where the snapshot has something else than what is `given`. What directives have changed since is passed over."""
    head, tensors = loaded.head, loaded.tensors
    rate = _first(tensors["scheduler"].get("base_lrs"))
    planned = None if rate is None else rate / float(head["training"]["lr_factor"])
    saved = _settings(head["mixture"], head["seed"], planned, _decay(tensors["optimizer"]["param_groups"]))
    changed = set(_changed(head["mixture"]["log"]))
    kept = [
        f"{name} {saved[name]} (given: {given[name]})"
        for name in saved
        if name not in changed and name in given and saved[name] != given[name]
    ]
    if kept:
        what = ", ".join(kept)
        trainer.session.say(f"kept from the snapshot: {what}; directives can change data and rate of a run", "warning")


def _settings(mixture: Mapping[str, Any], seed: int, rate: float | None, decay: float) -> Settings:
    """In words; a rate as far as a product and a quotient leave it."""
    weights = zip(mixture["names"], mixture["weight"], strict=True)
    found = {"global_batch": str(mixture["global_batch"]), "seed": str(seed), "weight_decay": f"{decay:.9g}"}
    found |= {} if rate is None else {"lr": f"{rate:.9g}"}
    return found | {f"weight of {name}": f"{weight:.9g}" for name, weight in weights}


def _changed(log: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Names of what directives have set."""
    for change in log:
        if change["action"] == "set_global_batch":
            yield "global_batch"
        elif change["action"] == "set_weights":
            yield from (f"weight of {name}" for name in change["weights"])
        elif change.get("weight") is not None:
            yield f"weight of {change['shard']}"


def _first(rates: Any) -> float | None:
    return float(rates[0]) if rates else None


def _decay(groups: Iterable[Mapping[str, Any]]) -> float:
    return max(float(group.get("weight_decay", 0.0)) for group in groups)
