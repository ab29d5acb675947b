"""The small collective by which all ranks agree at a control point. One world-wide sum of a few integers per step.

Uses its own gloo group where training runs on nccl, so that agreeing never waits for the accelerator. Works without a
process group (world of one). torch is imported here and in the files that train only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT = timedelta(minutes=30)


class Agreement:
    """Sum, broadcast and gather over all ranks; every method is collective: all ranks call it in the same order.

    A `separate` one may be used by a thread while others talk; making it is collective.
    """

    def __init__(self, *, separate: bool = False) -> None:
        self.active = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self.active else 0
        self.world_size = dist.get_world_size() if self.active else 1
        own_group = self.active and (separate or dist.get_backend() != "gloo")
        self.group = dist.new_group(backend="gloo", timeout=TIMEOUT) if own_group else None

    def sum(self, values: Sequence[int]) -> list[int]:
        """Sum of [N] integers over ranks, the same on every rank."""
        if self.world_size == 1:
            return [int(value) for value in values]
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, group=self.group)
        return [int(value) for value in tensor.tolist()]

    def sum_later(self, values: Sequence[int]) -> Callable[[], list[int]]:
        """As `sum`, without waiting: the returned function waits (collective; so ranks may drift apart in between)."""
        if self.world_size == 1:
            return lambda: [int(value) for value in values]
        tensor = torch.tensor(values, dtype=torch.int64)
        work = dist.all_reduce(tensor, group=self.group, async_op=True)

        def settle() -> list[int]:
            work.wait()
            return [int(value) for value in tensor.tolist()]

        return settle

    def sum_floats(self, values: torch.Tensor) -> torch.Tensor:
        """Sum of a float64 CPU tensor over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values, group=self.group)
        return values

    def broadcast(self, value: Any) -> Any:
        """Rank 0's object on every rank."""
        if self.world_size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.group)
        return box[0]

    def gather(self, value: Any) -> list[Any]:
        """Every rank's object, by rank, on every rank."""
        if self.world_size == 1:
            return [value]
        box: list[Any] = [None] * self.world_size
        dist.all_gather_object(box, value, group=self.group)
        return box

    def collect(self, tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]] | None:
        """Every rank's tensors as copies in CPU memory, by rank, on rank 0; None on the others. Their number may differ."""
        shapes = self.gather([(tuple(tensor.shape), tensor.dtype) for tensor in tensors])
        if self.rank > 0:
            for tensor in tensors:
                dist.send(_as_bytes(tensor.detach().cpu()), 0, group=self.group)
            return None
        found = [[tensor.detach().to("cpu", copy=True) for tensor in tensors]]
        for rank in range(1, self.world_size):
            found.append([torch.empty(shape, dtype=dtype) for shape, dtype in shapes[rank]])
            for tensor in found[-1]:
                dist.recv(_as_bytes(tensor), rank, group=self.group)
        return found

    def copy_from_first(self, tensors: Iterable[torch.Tensor]) -> None:
        """Make these equal to rank 0's, in place."""
        if self.world_size > 1:
            for tensor in tensors:
                dist.broadcast(tensor.detach(), 0, group=self.group if tensor.device.type == "cpu" else None)

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            dist.barrier(group=self.group)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes: any type can travel."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
