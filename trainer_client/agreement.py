"""The small collective by which all ranks agree at a control point. One world-wide sum of a few integers per step.

Uses its own gloo group where training runs on nccl, so that agreeing never waits for the accelerator. Works without a
process group (world of one). torch is imported here and in the files that train only.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=30)


class Agreement:
    """Sum, broadcast and gather over all ranks; every method is collective: all ranks call it in the same order."""

    def __init__(self) -> None:
        self.active = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.active else 0
        self.world_size = dist.get_world_size() if self.active else 1
        own_group = self.active and dist.get_backend() != "gloo"
        self._group = dist.new_group(backend="gloo", timeout=TIMEOUT) if own_group else None

    def sum(self, values: Sequence[int]) -> list[int]:
        """Sum of [N] integers over ranks, the same on every rank."""
        if self.world_size == 1:
            return [int(value) for value in values]
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, group=self._group)
        return [int(value) for value in tensor.tolist()]

    def sum_floats(self, values: torch.Tensor) -> torch.Tensor:
        """Sum of a float64 CPU tensor over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self._group)
        return values

    def broadcast(self, value: Any) -> Any:
        """Rank 0's object on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's object, by rank, on every rank."""
        if self.world_size == 1:
            return [value]
        box: list[Any] = [None] * self.world_size
        dist.all_gather_object(box, value, group=self._group)
        return box

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier(group=self._group)
