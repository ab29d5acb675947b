"""`ShardedMixture`: which sample comes when, independent of how many workers there are.

The samples of optimizer step s are a pure function of (seed, s, the log of changes with their steps). Ranks only take
their part of the plan. A change takes effect with a named step; what was planned beyond it is planned anew.

Within a step, shards are drawn by stratified sampling from the weights, so a shard's share of each step is as near to its
weight as whole samples allow. Within a shard, samples come in a shuffled order that repeats nothing until an epoch ends.

Legend: K shards, B samples of a global batch, S steps of a planned block.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer_client.permutation import combine, text_key
from trainer_client.shardorder import ShardOrder
from trainer_client.strata import shards_drawn

DRAWS_PER_BLOCK = 4096
MAX_STEPS_PER_BLOCK = 64
_SAMPLE = 3  # 1 and 2 are of `strata`


class MixtureError(ValueError):
    """A change that the mixture cannot make; the text says what would be possible."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The global batch of one step, in order: shard index [B], sample index within the shard's revision [B], epoch [B]."""

    step: int
    shard: NDArray[np.int64]
    sample: NDArray[np.int64]
    epoch: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shard)


def rank_share(num_parts: int, rank: int, world_size: int) -> range:
    """The consecutive parts of 0..num_parts-1 that `rank` does; sizes differ by one at most, and all parts are done once."""
    base, extra = divmod(num_parts, world_size)
    start = rank * base + min(rank, extra)
    return range(start, start + base + (rank < extra))


class ShardedMixture:
    """See the module. Not thread-safe; every rank holds its own, equal copy."""

    def __init__(
        self,
        shards: Sequence[tuple[str, int]] | Mapping[str, int],
        *,
        global_batch: int,
        seed: int = 0,
        weights: Mapping[str, float] | None = None,
        paused: Collection[str] = (),
        in_order: Collection[str] = (),
    ) -> None:
        """`shards`: (id, num_samples); `weights` default to 1.0 each (relative chance of a sample to come from a shard).

        Those `paused` give no sample until a `resume_shard`; those `in_order` are not shuffled.
        """
        self.seed = seed
        self.names: list[str] = []
        self.log: list[dict[str, Any]] = []
        self._index: dict[str, int] = {}
        self._order = ShardOrder(seed)
        self._weight: list[float] = []
        self._paused: list[bool] = []
        self._global_batch = _positive(global_batch, "global_batch")
        for name, num_samples in shards.items() if isinstance(shards, Mapping) else shards:
            self._append(name, num_samples, float((weights or {}).get(name, 1.0)), in_order=name in in_order)
        for what, given in (("weights name", set(weights or {})), ("paused are", set(paused))):
            if unknown := sorted(given - set(self.names)):
                raise MixtureError(f"{what} unknown shards: {', '.join(unknown)}")
        self._paused = [name in paused for name in self.names]
        self._check_some_active(self._weight, self._paused)
        self._start = 0  # first step of the planned block; the shard order stands there
        self._block: list[Plan] = []

    # -- reading ------------------------------------------------------------------------------------------------------

    @property
    def global_batch(self) -> int:
        """Samples of a global batch, as of the last change."""
        return self._global_batch

    def num_samples(self) -> dict[str, int]:
        """Samples of each shard's present revision."""
        return {name: self._order.size(index) for name, index in self._index.items()}

    def steps_of(self, epochs: float) -> int:
        """Optimizer steps in which as many samples come as `epochs` times all shards hold now."""
        return max(1, -int(-epochs * sum(self.num_samples().values()) // self._global_batch))

    def begun_with(self) -> dict[str, int | None]:
        """Samples of each shard when the run began; 0 of one that was added since, None where others have taken their place."""
        sizes: dict[str, int | None] = dict(self.num_samples())
        for change in self.log:
            if change["action"] == "add_shard":
                size = sizes[change["shard"]]
                replaced = self._order.generation(self._index[change["shard"]]) > 0
                sizes[change["shard"]] = None if replaced or size is None else size - change["num_samples"]
        return sizes

    def weights(self) -> dict[str, float]:
        """The weights in force; a paused shard shows 0."""
        return {name: 0.0 if self._paused[index] else self._weight[index] for name, index in self._index.items()}

    def sample_seed(self, shard: int, sample: int, epoch: int) -> int:
        """Seed for what is random about one visit of one sample: the same on any rank, in any world, after any resume."""
        return int(combine(text_key(self.seed, self.names[shard]), _SAMPLE, sample, epoch))

    def plan(self, step: int) -> Plan:
        """The global batch of `step`. Steps are asked for in rising order; the current one may be asked for again."""
        if step < self._start:
            raise ValueError(f"step {step} lies before step {self._start}, up to which this mixture has moved on")
        while step >= self._start + len(self._block):
            self._commit(self._start + len(self._block))
            self._block = self._plan_block()
        return self._block[step - self._start]

    def ahead(self, step: int, num_steps: int) -> list[Plan]:
        """What `plan` will give for the `num_steps` steps after `step`, the current one, unless a change comes before."""
        if step + num_steps >= self._start + len(self._block):
            self._commit(step)
            self._block = self._plan_block(num_steps + 1)
        first = step + 1 - self._start
        return self._block[first : first + num_steps]

    # -- changing -----------------------------------------------------------------------------------------------------

    def check(self, change: Mapping[str, Any]) -> None:
        """Raise `MixtureError` if `change` (action and args of a directive, plus `num_samples`) cannot be made now."""
        self._check(dict(change))

    def apply(self, step: int, change: Mapping[str, Any]) -> None:
        """Make `change` with effect from `step` on, and log it. Everything before `step` stays as it was."""
        change = dict(change)
        self._check(change)
        if step < self._start:
            raise MixtureError(f"step {step} is past; the mixture stands at step {self._start}")
        self.plan(step)
        self._commit(step)
        self._block = []
        getattr(self, f"_do_{change['action']}")(change)
        self.log.append({"step": step} | change)

    def _check(self, change: dict[str, Any]) -> None:
        action = change.get("action")
        check = getattr(self, f"_check_{action}", None)
        if check is None:
            raise MixtureError(f"the mixture does not know the change {action!r}")
        check(change)

    def _check_set_weights(self, change: dict[str, Any]) -> None:
        weights = change.get("weights")
        if not isinstance(weights, Mapping) or not weights:
            raise MixtureError("set_weights needs weights: {shard: number}")
        proposed = list(self._weight)
        for name, weight in weights.items():
            proposed[self._known(name)] = _weight(weight)
        self._check_some_active(proposed, self._paused)

    def _do_set_weights(self, change: dict[str, Any]) -> None:
        for name, weight in change["weights"].items():
            self._weight[self._index[name]] = float(weight)

    def _check_pause_shard(self, change: dict[str, Any]) -> None:
        paused = list(self._paused)
        paused[self._known(change.get("shard"))] = True
        self._check_some_active(self._weight, paused)

    def _do_pause_shard(self, change: dict[str, Any]) -> None:
        self._paused[self._index[change["shard"]]] = True

    def _check_resume_shard(self, change: dict[str, Any]) -> None:
        index = self._known(change.get("shard"))
        weight = _weight(change["weight"]) if change.get("weight") is not None else self._weight[index]
        if weight == 0.0:
            raise MixtureError(f"shard {change['shard']} has weight 0: resume it with a weight above 0")

    def _do_resume_shard(self, change: dict[str, Any]) -> None:
        index = self._index[change["shard"]]
        self._paused[index] = False
        if change.get("weight") is not None:
            self._weight[index] = float(change["weight"])

    def _check_add_shard(self, change: dict[str, Any]) -> None:
        if not isinstance(change.get("shard"), str) or not change["shard"]:
            raise MixtureError("add_shard needs the id of a shard")
        _positive(change.get("num_samples"), "num_samples of the added shard")
        if change.get("mode", "replace") not in {"replace", "extend"}:
            raise MixtureError(f"mode {change['mode']!r} is unknown; use replace or extend")
        if change.get("weight") is not None:
            _weight(change["weight"])

    def _do_add_shard(self, change: dict[str, Any]) -> None:
        name, num_samples, weight = change["shard"], int(change["num_samples"]), change.get("weight")
        if name not in self._index:
            self._append(name, num_samples, 1.0 if weight is None else float(weight))
            return
        index = self._index[name]
        if change.get("mode", "replace") == "replace":
            self._order.replace(index, num_samples)
        else:
            self._order.extend(index, num_samples)
        if weight is not None:
            self._weight[index] = float(weight)
        if change.get("resume"):
            self._paused[index] = False

    def _check_set_global_batch(self, change: dict[str, Any]) -> None:
        _positive(change.get("samples"), "samples of the global batch")

    def _do_set_global_batch(self, change: dict[str, Any]) -> None:
        self._global_batch = int(change["samples"])

    def _append(self, name: str, num_samples: int, weight: float, *, in_order: bool = False) -> None:
        if name in self._index:
            raise MixtureError(f"shard {name} is named twice")
        self._order.append(name, _positive(num_samples, f"num_samples of shard {name}"), in_order=in_order)
        self._index[name] = len(self.names)
        self.names.append(name)
        self._weight.append(_weight(weight))
        self._paused.append(False)

    def _known(self, name: Any) -> int:
        index = self._index.get(name)
        if index is None:
            known = ", ".join(self.names[:20]) + (" …" if len(self.names) > 20 else "")
            raise MixtureError(f"shard {name!r} is unknown; known: {known}")
        return index

    @staticmethod
    def _check_some_active(weight: Sequence[float], paused: Sequence[bool]) -> None:
        if not any(w > 0 and not p for w, p in zip(weight, paused, strict=True)):
            raise MixtureError("at least one shard must stay active with a weight above 0")

    # -- planning -----------------------------------------------------------------------------------------------------

    def _commit(self, step: int) -> None:
        """Move the shard order on to `step`: what the block planned before it has been drawn."""
        drawn = [plan.shard for plan in self._block[: step - self._start]]
        if drawn:
            self._order.advance(np.concatenate(drawn))
        self._block = self._block[step - self._start :]
        self._start = step

    def _plan_block(self, at_least: int = 1) -> list[Plan]:
        """Plans of the next S steps; a pure function of the state at its first step."""
        num_steps = max(at_least, min(DRAWS_PER_BLOCK // self._global_batch, MAX_STEPS_PER_BLOCK))
        steps = np.arange(self._start, self._start + num_steps, dtype=np.uint64)
        weight = np.where(self._paused, 0.0, self._weight)
        shard = shards_drawn(weight, steps, self._global_batch, self.seed)
        sample, epoch = self._order.peek(shard.ravel())
        sample, epoch = sample.reshape(shard.shape), epoch.reshape(shard.shape)
        return [Plan(self._start + row, shard[row], sample[row], epoch[row]) for row in range(num_steps)]

    # -- resume -------------------------------------------------------------------------------------------------------

    def state_dict(self, step: int) -> dict[str, Any]:
        """Everything needed to go on with `step`, as JSON-compatible values."""
        self.plan(step)
        self._commit(step)
        return {
            "version": 1,
            "seed": self.seed,
            "step": step,
            "global_batch": self._global_batch,
            "names": list(self.names),
            "weight": list(self._weight),
            "paused": list(self._paused),
            "order": self._order.state_dict(),
            "log": list(self.log),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a saved state in place of what the constructor was given."""
        if state.get("version") != 1:
            raise MixtureError(f"the saved mixture has version {state.get('version')!r}, this program reads version 1")
        self.seed = int(state["seed"])
        self._start = int(state["step"])
        self._block = []
        self._global_batch = int(state["global_batch"])
        self.names = list(state["names"])
        self._index = {name: index for index, name in enumerate(self.names)}
        self._weight = [float(weight) for weight in state["weight"]]
        self._paused = [bool(paused) for paused in state["paused"]]
        self._order = ShardOrder.from_state(self.seed, state["order"])
        self.log = [dict(change) for change in state["log"]]


def _positive(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise MixtureError(f"{what} must be a whole number of at least 1, not {value!r}")
    return value


def _weight(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise MixtureError(f"a weight must be a finite number of at least 0, not {value!r}")
    return float(value)
