"""The gradient of one optimizer step, accumulated over micro-batches and ranks, which may be put down in between.

Two kinds, with one interface; the order of calls is the same on every rank:

    accumulation.begin(work, carried)    # carried: pieces of a step that a snapshot holds, None for a fresh step
    for index in own micro-batches:
        backward of its loss             # into parameter.grad
        accumulation.take(index)
        accumulation.pieces()            # at any time: what this rank holds, for a snapshot
    accumulation.reduce()                # collective: parameter.grad is now the gradient of the whole global batch

Losses are divided by the supervised tokens of the global batch beforehand, so gradients are sums, never means.

* `SumAccumulation` adds in the order in which micro-batches are done and lets all_reduce add over ranks. Resumed by as many
  ranks, each goes on with its own sum: the same additions in the same order, equal bits. Resumed by another number, rank 0
  begins with the sum of all sums.
* `TreeAccumulation` adds over a fixed tree (`treesum`): equal bits for any sequence of worlds.

Gradients are exchanged here and not by DistributedDataParallel: that one cuts its buckets anew after the first step of a
process, so a resumed run of three or more ranks would add in another order than one that was never stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from trainer_client import buckets
from trainer_client.agreement import Agreement
from trainer_client.workshare import StepWork

Piece = dict[str, torch.Tensor]  # gradient by parameter name
SUM = "sum"


class Accumulation(Protocol):
    """See the module."""

    mode: str

    def begin(self, work: StepWork, carried: Mapping[str, Piece] | None) -> None: ...
    def take(self, index: int) -> None: ...
    def pieces(self) -> dict[str, Piece]: ...
    def reduce(self) -> None: ...


class SumAccumulation:
    """See the module."""

    mode = "same_world"

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], agreement: Agreement) -> None:
        self._parameters, self._agreement = parameters, agreement
        self._flat = FlatBuffers()

    def begin(self, work: StepWork, carried: Mapping[str, Piece] | None) -> None:
        """`carried`: this rank's sum so far."""
        own = (carried or {}).get(SUM, {})
        for name, parameter in self._parameters:
            parameter.grad = own[name].to(parameter, copy=True) if name in own else None

    def take(self, index: int) -> None:
        """Autograd has added the micro-batch to parameter.grad."""

    def pieces(self) -> dict[str, Piece]:
        """This rank's own sum, not exchanged yet."""
        held = {name: parameter.grad for name, parameter in self._parameters if parameter.grad is not None}
        return {SUM: held} if held else {}

    def reduce(self) -> None:
        """Sum over ranks (collective)."""
        if self._agreement.world_size == 1:
            return
        tensors = [*with_zeros(self._parameters), presence(self._parameters)]
        under_way: deque[tuple[torch.Tensor, Any]] = deque()
        for sent, taken in buckets.in_turn(buckets.cut(tensors)):
            if taken is not None:
                flat, work = under_way.popleft()
                work.wait()
                taken.unpack(flat, tensors)
                self._flat.give_back(flat)
            if sent is not None:
                flat = self._flat.take(sent.num_elements, tensors[sent.start])
                sent.pack(tensors, flat)
                under_way.append((flat, dist.all_reduce(flat, async_op=True)))
        set_gradients(self._parameters, tensors)


class FlatBuffers:
    """Buffers that are used again; a fresh one costs a page fault for each of its pages."""

    def __init__(self) -> None:
        self._idle: list[torch.Tensor] = []

    def take(self, num_elements: int, like: torch.Tensor) -> torch.Tensor:
        """A buffer of exactly that many elements, with whatever in it."""
        for at, flat in enumerate(self._idle):
            if flat.numel() == num_elements and flat.dtype == like.dtype and flat.device == like.device:
                return self._idle.pop(at)
        return torch.empty(num_elements, dtype=like.dtype, device=like.device)

    def give_back(self, flat: torch.Tensor) -> None:
        """The buffer may be used again."""
        self._idle.append(flat)
        del self._idle[: -4 * buckets.IN_FLIGHT]


def with_zeros(parameters: Sequence[tuple[str, nn.Parameter]]) -> list[torch.Tensor]:
    """The gradients; zeros where there is none."""
    return [torch.zeros_like(parameter) if parameter.grad is None else parameter.grad for _, parameter in parameters]


def presence(parameters: Sequence[tuple[str, nn.Parameter]]) -> torch.Tensor:
    """[P] 1.0 where there is a gradient."""
    flags = [0.0 if parameter.grad is None else 1.0 for _, parameter in parameters]
    return torch.tensor(flags, device=parameters[0][1].device)


def set_gradients(parameters: Sequence[tuple[str, nn.Parameter]], tensors: Sequence[torch.Tensor]) -> None:
    """Put `tensors` (gradients, and [P] counts last) into parameter.grad; none where nobody had one."""
    counts = tensors[-1].tolist()
    for (_, parameter), gradient, count in zip(parameters, tensors[:-1], counts, strict=True):
        parameter.grad = gradient if count else None
