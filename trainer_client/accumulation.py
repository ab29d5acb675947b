"""The gradient of one optimizer step, accumulated over micro-batches and ranks, which may be put down in between.

Two kinds, with one interface; the order of calls is the same on every rank:

    accumulation.begin(work, carried)    # carried: pieces of a step that a snapshot holds, None for a fresh step
    for index in own micro-batches:
        backward of its loss             # into parameter.grad
        accumulation.take(index)
        accumulation.pieces()            # at any time: what this rank holds, for a snapshot
    accumulation.reduce()                # collective: parameter.grad is now the gradient of the whole global batch
    accumulation.close()                 # before another takes its place

Losses are divided by the supervised tokens of the global batch beforehand, so gradients are sums, never means.

* `SumAccumulation` adds in the order in which micro-batches are done and lets all_reduce add over ranks. Resumed by as many
  ranks, each goes on with its own sum: the same additions in the same order, equal bits. Resumed by another number, rank 0
  begins with the sum of all sums.
* `TreeAccumulation` adds over a fixed tree (`treesum`): equal bits for any sequence of worlds.

Models in slices have the same two of their own (`sliceaccumulation`).

Gradients are exchanged here and not by DistributedDataParallel: that one cuts its buckets anew after the first step of a
process, so a resumed run of three or more ranks would add in another order than one that was never stopped.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn

from trainer_client import buckets
from trainer_client.agreement import Agreement
from trainer_client.owntime import OWN
from trainer_client.workshare import StepWork

Piece = dict[str, torch.Tensor]  # gradient by parameter name
SUM = "sum"
PRESENCE = "presence of gradients"  # which parameters had one; not a parameter's name: those have no blanks


class Accumulation(Protocol):
    """See the module."""

    mode: str

    def begin(self, work: StepWork, carried: Mapping[str, Piece] | None) -> None: ...
    def take(self, index: int) -> None: ...
    def pieces(self) -> dict[str, Piece]: ...
    def reduce(self) -> None: ...
    def close(self) -> None: ...


class SumAccumulation:
    """See the module."""

    mode = "same_world"

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], agreement: Agreement) -> None:
        self._parameters, self._agreement = parameters, agreement
        self._num_left = 0  # own micro-batches to come
        self._may_overlap = False
        self._exchange = BucketExchange(parameters)
        alone = agreement.world_size == 1
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._added, place))
            for place, (_, parameter) in enumerate(() if alone else parameters)
        ]

    def begin(self, work: StepWork, carried: Mapping[str, Piece] | None) -> None:
        """`carried`: this rank's sum so far."""
        own = (carried or {}).get(SUM, {})
        for name, parameter in self._parameters:
            parameter.grad = own[name].to(parameter, copy=True) if name in own else None
        self._num_left = len(work.remaining[self._agreement.rank])
        # Until the last round has begun all ranks may still leave, and what is on its way could not be called back.
        self._may_overlap = self._num_left == work.num_rounds
        self._exchange.begin()

    def take(self, index: int) -> None:
        """Autograd has added the micro-batch to parameter.grad."""
        self._num_left -= 1

    def _added(self, place: int, parameter: nn.Parameter) -> None:
        """Autograd is done with a parameter of one micro-batch; with the last one its sum is complete."""
        if self._may_overlap and self._num_left == 1:
            self._exchange.complete(place)

    def pieces(self) -> dict[str, Piece]:
        """This rank's own sum, not exchanged yet."""
        held = {name: parameter.grad for name, parameter in self._parameters if parameter.grad is not None}
        return {SUM: held} if held else {}

    def reduce(self) -> None:
        """Sum over ranks (collective)."""
        if self._agreement.world_size > 1:
            self._exchange.finish()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


class BucketExchange:
    """One step's sums over ranks, bucket by bucket, while the backward pass still computes the gradients of earlier layers.

    Buckets are cut once, from the last parameter to the first, as a backward pass is done with them, and leave in that order on
    every rank: the same additions in every process. DistributedDataParallel has the idea (Li et al., VLDB 2020), but cuts anew.
    Order of calls: `begin`, `complete` for gradients that will not change any more (any order, any subset), `finish`.
    """

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]]) -> None:
        self._parameters = list(reversed(parameters))
        self._buckets = buckets.cut([*(parameter for _, parameter in self._parameters), presence(self._parameters)])
        self._bucket_of = [at for at, one in enumerate(self._buckets) for _ in range(one.stop - one.start)]
        self._flat = FlatBuffers()
        self.begin()

    def begin(self) -> None:
        """Nothing is complete."""
        self._tensors: list[Any] = [None] * (len(self._parameters) + 1)  # None: not complete
        self._missing = [bucket.stop - bucket.start for bucket in self._buckets]
        self._num_sent = 0
        self._under_way: deque[tuple[buckets.Bucket, torch.Tensor, Any]] = deque()

    def complete(self, place: int) -> None:
        """parameters[place].grad is this rank's sum; buckets that are full now leave."""
        at = len(self._parameters) - 1 - place
        assert self._tensors[at] is None, "a gradient was said to be complete twice in one step"
        self._put(at, self._parameters[at][1].grad)
        while self._num_sent < len(self._buckets) and not self._missing[self._num_sent]:
            self._send()

    def finish(self) -> None:
        """The rest leaves, and all is taken in (collective): parameter.grad is the sum, none where nobody had one."""
        for at, tensor in enumerate([*with_zeros(self._parameters), presence(self._parameters)]):
            if self._tensors[at] is None:
                self._put(at, tensor)
        while self._num_sent < len(self._buckets):
            self._send()
        while self._under_way:
            self._take_in()
        set_gradients(self._parameters, self._tensors)
        self.begin()

    def _put(self, at: int, tensor: torch.Tensor | None) -> None:
        self._tensors[at] = tensor
        self._missing[self._bucket_of[at]] -= 1

    def _send(self) -> None:
        if len(self._under_way) >= buckets.IN_FLIGHT:
            self._take_in()
        bucket = self._buckets[self._num_sent]
        flat = self._flat.take(bucket.num_elements, self._tensors[bucket.start])
        bucket.pack(self._tensors, flat)
        self._under_way.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
        self._num_sent += 1

    def _take_in(self) -> None:
        bucket, flat, work = self._under_way.popleft()
        with OWN.waiting():
            work.wait()
        with torch.no_grad():
            bucket.unpack(flat, self._tensors)
        self._flat.give_back(flat)


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
