"""The order of samples within each shard: shuffled epochs without repeats, for any number of shards at once.

A shard's d-th draw since its revision began is position (d - origin) mod n of epoch (d - origin) div n. When a shard is
extended in mid-epoch, what was left of the epoch and the new samples form one *open* epoch, so that still nothing comes
twice before everything came once.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainer_client.permutation import combine, permute, text_key

I64 = NDArray[np.int64]
_EPOCH, _OPEN = 11, 12


@dataclass(frozen=True, slots=True)
class OpenEpoch:
    """The draws from `start` on follow `samples` [N] until it is used up."""

    start: int
    samples: I64


class ShardOrder:
    """Arrays over K shards; `peek` looks ahead without moving, `advance` moves."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._names: list[str] = []
        self._generation: list[int] = []
        self._size: list[int] = []
        self._origin: list[int] = []
        self._first_epoch: list[int] = []
        self._in_order: list[bool] = []
        self._drawn: I64 = np.zeros(0, dtype=np.int64)
        self._open: dict[int, OpenEpoch] = {}
        self._arrays: tuple[I64, I64, I64, NDArray[np.uint64]] | None = None

    def size(self, index: int) -> int:
        """Samples of the shard's present revision."""
        return self._size[index]

    def generation(self, index: int) -> int:
        """How often other samples have taken the place of the shard's."""
        return self._generation[index]

    def append(self, name: str, num_samples: int, *, in_order: bool = False) -> None:
        """A new shard, as the last index; `in_order`: each epoch goes from its first sample to its last."""
        self._names.append(name)
        self._in_order.append(in_order)
        self._generation.append(0)
        self._size.append(num_samples)
        self._origin.append(0)
        self._first_epoch.append(0)
        self._drawn = np.append(self._drawn, 0)
        self._arrays = None

    def replace(self, index: int, num_samples: int) -> None:
        """A new revision takes the place of the old samples; its first epoch begins."""
        self._generation[index] += 1
        self._size[index] = num_samples
        self._origin[index] = self._first_epoch[index] = 0
        self._drawn[index] = 0
        self._open.pop(index, None)
        self._arrays = None

    def extend(self, index: int, num_new: int) -> None:
        """`num_new` samples join behind the present ones (as indices n..n+num_new-1)."""
        rest, epoch = self._rest_of_epoch(index)
        samples = np.concatenate([rest, np.arange(self._size[index], self._size[index] + num_new)])
        key = combine(self._key(index), _OPEN, epoch, self._size[index])
        shuffled = samples[np.argsort(combine(key, samples.astype(np.uint64)), kind="stable")]
        shuffled = samples if self._in_order[index] else shuffled
        drawn = int(self._drawn[index])
        self._open[index] = OpenEpoch(drawn, shuffled)
        self._origin[index] = drawn + len(shuffled)
        self._first_epoch[index] = epoch + 1
        self._size[index] += num_new
        self._arrays = None

    def _rest_of_epoch(self, index: int) -> tuple[I64, int]:
        """What the epoch in progress still holds, and its number."""
        drawn, origin, size = int(self._drawn[index]), self._origin[index], self._size[index]
        if drawn < origin:
            opened = self._open[index]
            return opened.samples[drawn - opened.start :], self._first_epoch[index] - 1
        epoch, position = divmod(drawn - origin, size)
        epoch += self._first_epoch[index]
        rest = np.arange(position if position else size, size)
        return self._permuted(np.full(len(rest), index), rest, np.full(len(rest), epoch)), epoch

    def peek(self, shard: I64) -> tuple[I64, I64]:
        """Sample index [N] and epoch [N] of the next draws, for a sequence of shard indices [N]."""
        drawn = self._drawn[shard] + _ordinals(shard)
        size, origin, first_epoch, _ = self._columns()
        since = drawn - origin[shard]
        epoch, position = np.divmod(since, size[shard])
        epoch = epoch + first_epoch[shard]
        regular = since >= 0
        sample = np.empty_like(drawn)
        sample[regular] = self._permuted(shard[regular], position[regular], epoch[regular])
        for place in np.flatnonzero(~regular):
            opened = self._open[int(shard[place])]
            sample[place] = opened.samples[drawn[place] - opened.start]
        epoch[~regular] = first_epoch[shard[~regular]] - 1
        return sample, epoch

    def advance(self, shard: I64) -> None:
        """The draws for `shard` [N] have been made."""
        self._drawn += np.bincount(shard, minlength=len(self._drawn))
        for index in [index for index in self._open if self._drawn[index] >= self._origin[index]]:
            del self._open[index]

    def _permuted(self, shard: I64, position: I64, epoch: I64) -> I64:
        size, _, _, key = self._columns()
        shuffled = permute(position, size[shard], combine(key[shard], _EPOCH, epoch.astype(np.uint64)))
        return np.where(np.array(self._in_order)[shard], position, shuffled) if any(self._in_order) else shuffled

    def _columns(self) -> tuple[I64, I64, I64, NDArray[np.uint64]]:
        if self._arrays is None:
            keys = np.array([self._key(index) for index in range(len(self._names))], dtype=np.uint64)
            lists = (self._size, self._origin, self._first_epoch)
            size, origin, first_epoch = (np.array(values, dtype=np.int64) for values in lists)
            self._arrays = (size, origin, first_epoch, keys)
        return self._arrays

    def _key(self, index: int) -> int:
        return text_key(self._seed, self._names[index], self._generation[index])

    def state_dict(self) -> dict[str, Any]:
        """JSON-compatible; open epochs as base64 of little-endian int64."""
        in_order = {"in_order": list(self._in_order)} if any(self._in_order) else {}
        return in_order | {
            "names": list(self._names),
            "generation": list(self._generation),
            "size": list(self._size),
            "origin": list(self._origin),
            "first_epoch": list(self._first_epoch),
            "drawn": self._drawn.tolist(),
            "open": {
                str(index): [item.start, base64.b64encode(item.samples.astype("<i8").tobytes()).decode()]
                for index, item in self._open.items()
            },
        }

    @classmethod
    def from_state(cls, seed: int, state: Mapping[str, Any]) -> ShardOrder:
        """The order that `state_dict` described."""
        order = cls(seed)
        order._names, order._generation = list(state["names"]), list(state["generation"])
        order._size, order._origin = list(state["size"]), list(state["origin"])
        order._first_epoch = list(state["first_epoch"])
        order._in_order = list(state.get("in_order", [False] * len(order._names)))
        order._drawn = np.array(state["drawn"], dtype=np.int64)
        for index, (start, text) in state["open"].items():
            samples = np.frombuffer(base64.b64decode(text), dtype="<i8").astype(np.int64)
            order._open[int(index)] = OpenEpoch(int(start), samples)
        return order


def _ordinals(values: I64) -> I64:
    """For each element [N] how many equal ones stand before it."""
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    first = np.r_[True, ranked[1:] != ranked[:-1]]
    starts = np.maximum.accumulate(np.where(first, np.arange(len(values)), 0))
    result = np.empty(len(values), dtype=np.int64)
    result[order] = np.arange(len(values)) - starts
    return result
