"""What every encoder has in common: what was encoded is kept, up to so many tokens, for the next epoch."""

from __future__ import annotations

import copy
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, Self

MOST_TOKENS = 8_000_000  # kept by a rank: as Python's numbers about 36 bytes each


class SampleEncoder(ABC):
    """From raw samples to what a micro-batch is made of."""

    def __init__(self) -> None:
        self._kept = Kept(MOST_TOKENS)

    @abstractmethod
    def encode(self, samples: Sequence[dict[str, Any]]) -> list[Any]:
        """Each raw sample, encoded."""

    @abstractmethod
    def collate(self, encoded: Sequence[Any]) -> tuple[dict[str, Any], int]:
        """`fields` and `num_supervised` of a micro-batch of these."""

    def num_tokens(self, encoded: Any) -> int:
        """How much an encoded sample weighs where it is kept."""
        return 1024

    def for_thread(self) -> Self:
        """One for another thread: a copy, as a tokenizer is not to be used by two at a time, that shares what was encoded."""
        return copy.deepcopy(self, {id(self._kept): self._kept})

    def cached(self, keys: Sequence[tuple[int, int, int]], read: Callable[[int], dict[str, Any]]) -> list[Any]:
        """The encoded samples `keys` [N] = (shard, revision, sample); `read(n)` gives the n-th where it is not at hand."""
        found = self._kept.known(keys)
        missing = {key: place for place, key in enumerate(keys) if key not in found}
        new = dict(zip(missing, self.encode([read(place) for place in missing.values()]), strict=True))
        self._kept.keep(new, {key: self.num_tokens(item) for key, item in new.items()})
        return [new[key] if key in new else found[key] for key in keys]


class Kept:
    """The last of what was put in, `most` by weight; for several threads."""

    def __init__(self, most: int) -> None:
        self._most, self._weight = most, 0
        self._items: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._items)

    def known(self, keys: Iterable[Hashable]) -> dict[Hashable, Any]:
        with self._lock:
            return {key: self._items[key][0] for key in keys if key in self._items}

    def keep(self, items: Mapping[Any, Any], weights: Mapping[Any, int]) -> None:
        with self._lock:
            for key, item in items.items():
                self._weight += weights[key] - self._items.pop(key, (None, 0))[1]
                self._items[key] = item, weights[key]
            while self._weight > self._most:
                self._weight -= self._items.popitem(last=False)[1][1]
