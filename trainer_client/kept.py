"""What a resumed run keeps from its snapshot, whatever it is given now: said, so that nobody waits for it to change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trainer_client.training_state import LoadedState

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin


def say_kept(trainer: BidirectionalMixin, loaded: LoadedState) -> None:
    """Before anything is put back. What directives have changed since is not what was given, and is passed over."""
    kept = [
        f"{name} {_words(saved)} (given: {_words(given)})"
        for name, saved, given in _pairs(trainer, loaded)
        if saved is not None and given is not None and saved != given
    ]
    if kept:
        what = ", ".join(kept)
        trainer.session.say(f"kept from the snapshot: {what}; directives can change data and rate of a run", "warning")


def _pairs(trainer: BidirectionalMixin, loaded: LoadedState) -> Iterator[tuple[str, Any, Any]]:
    """(name, in the snapshot, given now); None for unknown."""
    saved, now = loaded.head["mixture"], trainer.source.mixture.state_dict(0)
    changed = set(_changed(saved["log"]))
    if "" not in changed:
        yield "global_batch", saved["global_batch"], now["global_batch"]
    yield "seed", loaded.head["seed"], trainer.args.seed
    factor = float(loaded.head["training"]["lr_factor"])
    yield "lr", _rounded(_first_rate(loaded.tensors["scheduler"]), factor), _rounded(_given_rate(trainer), 1.0)
    yield "weight_decay", _decay(loaded.tensors["optimizer"]["param_groups"]), _given_decay(trainer)
    before, given = (dict(zip(state["names"], state["weight"], strict=True)) for state in (saved, now))
    both = [name for name in before if name in given and name not in changed and before[name] != given[name]]
    yield "weights", {name: before[name] for name in both}, {name: given[name] for name in both}


def _changed(log: list[dict[str, Any]]) -> Iterator[str]:
    """Shards whose weight directives have set; an empty name for the size of the global batch."""
    for change in log:
        if change["action"] == "set_global_batch":
            yield ""
        elif change["action"] == "set_weights":
            yield from change["weights"]
        elif change.get("weight") is not None:
            yield change["shard"]


def _first_rate(scheduler: Any) -> float | None:
    rates = scheduler.get("base_lrs") if isinstance(scheduler, Mapping) else getattr(scheduler, "base_lrs", None)
    return float(rates[0]) if rates else None


def _given_rate(trainer: BidirectionalMixin) -> float | None:
    """A Trainer has no schedule yet; a loop of one's own has no rate among its arguments."""
    if hasattr(trainer.args, "learning_rate"):
        return float(trainer.args.learning_rate)
    return _first_rate(trainer.lr_scheduler)


def _decay(groups: list[dict[str, Any]]) -> float:
    return max(float(group.get("weight_decay", 0.0)) for group in groups)


def _given_decay(trainer: BidirectionalMixin) -> float:
    if hasattr(trainer.args, "weight_decay"):
        return float(trainer.args.weight_decay)
    return _decay(trainer.optimizer.param_groups)


def _rounded(rate: float | None, factor: float) -> float | None:
    """The planned rate, as far as a product and a quotient leave it."""
    return float(f"{rate / factor:.9g}") if rate is not None else None


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {weight:g}" for name, weight in value.items())
    return f"{value:g}" if isinstance(value, float) else str(value)
