"""`TreeAccumulation`: the gradient of a step, bit by bit the same for every world and every sequence of worlds.

Each micro-batch's gradient is computed alone and put into the fixed tree over micro-batches. A rank merges what it can; the
nodes that are left cross the ranks: each rank gets one slice of all of them, finishes the tree for that slice, and the slices
are gathered. For shares that are whole subtrees that is as much traffic as an all_reduce.

Legend: W ranks, P parameters, S elements of a slice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import nn

from trainer_client import buckets
from trainer_client.accumulation import (
    PRESENCE,
    Accumulation,
    FlatBuffers,
    Piece,
    SumAccumulation,
    presence,
    set_gradients,
    with_zeros,
)
from trainer_client.agreement import Agreement
from trainer_client.treesum import Node, TreeSum, merged_nodes
from trainer_client.workshare import StepWork


class TreeAccumulation:
    """See the module; the interface is that of `accumulation.Accumulation`."""

    mode = "exact"

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], agreement: Agreement) -> None:
        self._parameters, self._agreement = parameters, agreement
        self._names = [*(name for name, _ in parameters), PRESENCE]
        self._flat = FlatBuffers()
        self._held_by_rank: list[tuple[Node, ...]] = []
        self._work = StepWork(0, ())
        self._tree: TreeSum[list[torch.Tensor]] = TreeSum(0, _add)

    def begin(self, work: StepWork, carried: Mapping[str, Piece] | None) -> None:
        """`carried`: the nodes that this rank takes over."""
        device = self._parameters[0][1].device
        self._tree = TreeSum(work.num_micro, _add)
        for key, piece in (carried or {}).items():
            whole = {PRESENCE: torch.ones(len(self._parameters))} | piece  # in slices every parameter has a gradient
            self._tree.put(node_of(key), [whole[name].to(device, copy=True) for name in self._names])
        nodes = self._agreement.gather(tuple(self._tree.held)) if carried is not None else [()] * len(work.remaining)
        self._work, self._held_by_rank = work, nodes
        for _, parameter in self._parameters:
            parameter.grad = None

    def take(self, index: int) -> None:
        """Move the micro-batch's gradient from parameter.grad into the tree."""
        leaf = [*with_zeros(self._parameters), presence(self._parameters)]
        for _, parameter in self._parameters:
            parameter.grad = None
        self._tree.put((0, index), leaf)

    def pieces(self) -> dict[str, Piece]:
        """The nodes that this rank holds."""
        return {key_of(node): dict(zip(self._names, value, strict=True)) for node, value in self._tree.held.items()}

    def reduce(self) -> None:
        """Finish the tree over all ranks (collective)."""
        tensors = self._tree.root() if self._agreement.world_size == 1 else self._reduced()
        set_gradients(self._parameters, tensors)
        self._tree = TreeSum(0, _add)

    def close(self) -> None:
        """Nothing is to be undone."""

    def _reduced(self) -> list[torch.Tensor]:
        layout = [
            merged_nodes(self._work.num_micro, [*held, *((0, index) for index in share)])
            for held, share in zip(self._held_by_rank, self._work.remaining, strict=True)
        ]
        exchange = SliceExchange(self._work.num_micro, layout, self._agreement.rank, self._flat)
        own = [self._tree.held[node] for node in layout[self._agreement.rank]]
        tensors = own[0] if own else [*with_zeros(self._parameters), presence(self._parameters)]
        finish: deque[Callable[[], Callable[[], torch.Tensor]]] = deque()
        gather: deque[tuple[buckets.Bucket, Callable[[], torch.Tensor]]] = deque()
        for sent, taken in buckets.in_turn(buckets.cut(tensors)):
            if taken is not None:
                gather.append((taken, finish.popleft()()))
            while len(gather) > 1:
                self._take_in(*gather.popleft(), tensors)
            if sent is not None:
                finish.append(exchange.send(sent, own, tensors[sent.start]))
        while gather:
            self._take_in(*gather.popleft(), tensors)
        return tensors

    def _take_in(
        self, bucket: buckets.Bucket, gathered: Callable[[], torch.Tensor], tensors: Sequence[torch.Tensor]
    ) -> None:
        flat = gathered()
        bucket.unpack(flat, tensors)
        self._flat.give_back(flat)


class SliceExchange:
    """One step's exchange of nodes; `layout[r]` are those of rank r. Every rank sends the buckets in the same order.

    Slices go straight from rank to rank: at two ranks that costs less than an all_reduce of the same gradient.
    """

    def __init__(self, num_leaves: int, layout: list[list[Node]], rank: int, flat: FlatBuffers) -> None:
        self._num_leaves, self._layout, self._rank, self._flat = num_leaves, layout, rank, flat
        self._tag = 0

    def send(
        self, bucket: buckets.Bucket, own: Sequence[list[torch.Tensor]], like: torch.Tensor
    ) -> Callable[[], Callable[[], torch.Tensor]]:
        """Slices of this rank's nodes to all ranks. The returned function finishes the tree for this rank's slice and sends
        it; what that returns waits for the slices of the others."""
        world = len(self._layout)
        size = -(-bucket.num_elements // world)
        outgoing = self._flat.take(len(own) * world * size, like)
        if len(own) == 1:
            bucket.pack(own[0], outgoing)
        else:
            self._interleave(bucket, own, outgoing.view(world, len(own), size) if own else outgoing, size)
        to_rank = list(outgoing.split(len(own) * size)) if own else [outgoing] * world
        counts = [len(nodes) * size for nodes in self._layout]
        counts[self._rank] = 0  # what stays here needs no way
        incoming = self._flat.take(sum(counts), like)
        from_rank = list(incoming.split(counts))
        arrived = self._swap(to_rank, from_rank)

        def finish() -> Callable[[], torch.Tensor]:
            arrived()
            from_rank[self._rank] = to_rank[self._rank]
            return self._share(from_rank, size, (outgoing, incoming))

        return finish

    def _swap(self, to_rank: Sequence[torch.Tensor], from_rank: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Begin to send and to receive what is not empty; the returned function waits."""
        self._tag += 1
        others = [rank for rank in range(len(self._layout)) if rank != self._rank]
        orders = [dist.P2POp(dist.isend, to_rank[rank], rank, tag=self._tag) for rank in others if len(to_rank[rank])]
        orders += [
            dist.P2POp(dist.irecv, from_rank[rank], rank, tag=self._tag) for rank in others if len(from_rank[rank])
        ]
        under_way = dist.batch_isend_irecv(orders) if orders else []

        def arrived() -> None:
            for work in under_way:
                work.wait()

        return arrived

    def _interleave(
        self, bucket: buckets.Bucket, own: Sequence[list[torch.Tensor]], outgoing: torch.Tensor, size: int
    ) -> None:
        """`outgoing` [W, own nodes, S]: what goes to one rank lies together."""
        for at, node in enumerate(own):
            whole = self._flat.take(len(self._layout) * size, outgoing)
            bucket.pack(node, whole)
            outgoing[:, at] = whole.view(-1, size)
            self._flat.give_back(whole)

    def _share(
        self, by_rank: Sequence[torch.Tensor], size: int, spent: tuple[torch.Tensor, ...]
    ) -> Callable[[], torch.Tensor]:
        """Finish the tree over the nodes of all ranks for this slice, and gather. `spent`: buffers that are free then."""
        tree: TreeSum[torch.Tensor] = TreeSum(self._num_leaves, lambda left, right: left.add_(right))
        for nodes, parts in zip(self._layout, by_rank, strict=True):
            for node, part in zip(nodes, parts.split(size), strict=False):  # an empty tensor splits into one empty part
                tree.put(node, part)
        whole = self._flat.take(len(self._layout) * size, by_rank[0])
        slices = list(whole.split(size))
        slices[self._rank].copy_(tree.root())
        arrived = self._swap([slices[self._rank]] * len(slices), slices)

        def gathered() -> torch.Tensor:
            arrived()
            for flat in spent:
                self._flat.give_back(flat)
            return whole

        return gathered


def accumulation_of_copies(model: nn.Module, agreement: Agreement, mode: str) -> Accumulation:
    """The gradient of a model of which each rank has a copy, in that fidelity."""
    trained = [(name, part) for name, part in model.named_parameters() if part.requires_grad]
    return (TreeAccumulation if mode == "exact" else SumAccumulation)(trained, agreement)


def _add(left: list[torch.Tensor], right: list[torch.Tensor]) -> list[torch.Tensor]:
    torch._foreach_add_(left, right)
    return left


def key_of(node: Node) -> str:
    """A node's name in a snapshot."""
    return f"{node[0]}.{node[1]}"


@lru_cache(maxsize=4096)
def node_of(key: str) -> Node:
    """The node of that name."""
    level, place = key.split(".")
    return int(level), int(place)
