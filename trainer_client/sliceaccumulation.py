"""The gradient of a step of a model in slices; the interface is that of `accumulation.Accumulation`.

* `SliceAccumulation` lets FSDP add over ranks with every micro-batch: each rank holds its rows of the sum so far.
* `SliceTreeAccumulation` puts its rows of each micro-batch's gradient into the fixed tree (`treesum`): equal bits for any sequence
  of worlds, and those that `TreeAccumulation` gives with copies of the model.

Legend: W ranks, L micro-batches of a round, S elements of a rank's slice of a group.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from trainer_client.accumulation import SUM, Piece
from trainer_client.slices import Slices, like, local
from trainer_client.treeaccumulation import key_of, node_of
from trainer_client.treesum import TreeSum
from trainer_client.workshare import StepWork


class SliceAccumulation:
    """See the module."""

    mode = "same_world"

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        self._parameters = list(parameters)

    def begin(self, work: StepWork, carried: Mapping[str, Piece] | None) -> None:
        """`carried`: this rank's slices of the sum so far."""
        own = (carried or {}).get(SUM, {})
        for name, parameter in self._parameters:
            parameter.grad = own.get(name)

    def take(self, index: int) -> None:
        """It has been added already."""

    def pieces(self) -> dict[str, Piece]:
        """This rank's slices of the sum over all ranks."""
        held = {name: parameter.grad for name, parameter in self._parameters if parameter.grad is not None}
        return {SUM: held} if held else {}

    def reduce(self) -> None:
        """Nothing is left to be added."""

    def close(self) -> None:
        """Nothing is to be undone."""


class SliceTreeAccumulation:
    """See the module. Shares are to be dealt (`StepWork.dealt`): what a round brings merges at once, and a rank holds few nodes."""

    mode = "exact"

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], slices: Slices) -> None:
        self._parameters = dict(parameters)
        self._trees: dict[str, TreeSum[torch.Tensor]] = {}
        self._latest: Sequence[
            tuple[int, torch.Tensor]
        ] = ()  # micro-batch, [S]: of the group whose gradient was last exchanged
        types = {parameter.dtype for parameter in self._parameters.values()}
        self._exchanges = [RowExchange(self._note, types.pop() if len(types) == 1 else None) for _ in slices.groups]
        self._slices = slices
        for group, exchange in zip(slices.groups, self._exchanges, strict=True):
            group.set_custom_reduce_scatter(exchange)
        # FSDP calls these when it has set .grad to where the sum over ranks would be.
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._arrived, name))
            for name, parameter in self._parameters.items()
        ]

    def begin(self, work: StepWork, carried: Mapping[str, Piece] | None) -> None:
        """`carried`: this rank's rows of the nodes that all ranks held."""
        self._trees = {name: TreeSum(work.num_micro, torch.Tensor.add_) for name in self._parameters}
        for key, piece in (carried or {}).items():
            for name, tree in self._trees.items():
                tree.put(node_of(key), local(piece[name]))
        for exchange in self._exchanges:
            exchange.begin(work)
        for parameter in self._parameters.values():
            parameter.grad = None

    def _note(self, leaves: Sequence[tuple[int, torch.Tensor]]) -> None:
        self._latest = leaves

    def _arrived(self, name: str, parameter: nn.Parameter) -> None:
        """This rank's rows of a parameter, of each micro-batch of the round."""
        assert parameter.grad is not None
        place = local(parameter.grad)
        start, tree = place.storage_offset(), self._trees[name]
        parameter.grad = None
        for index, flat in self._latest:
            tree.put((0, index), flat[start : start + place.numel()].view(place.shape).to(parameter.dtype))
        for node, rows in tree.held.items():
            if rows._base is not None:  # what others of the group take has to go
                tree.held[node] = rows.clone()

    def take(self, index: int) -> None:
        """It is in the tree already."""

    def pieces(self) -> dict[str, Piece]:
        """This rank's rows of the nodes that all ranks hold together."""
        nodes = next(iter(self._trees.values())).held if self._trees else ()
        return {
            key_of(node): {
                name: like(parameter, self._trees[name].held[node]) for name, parameter in self._parameters.items()
            }
            for node in nodes
        }

    def reduce(self) -> None:
        """The root is the gradient."""
        for name, parameter in self._parameters.items():
            parameter.grad = like(parameter, self._trees[name].root())
        self._trees = {}

    def close(self) -> None:
        """FSDP adds over ranks again."""
        for hook in self._hooks:
            hook.remove()
        for group in self._slices.groups:
            group.set_custom_reduce_scatter(RankSum())


class RankSum(ReduceScatter):
    """FSDP's own way: the sum over ranks, cut by rows."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> dist.Work | None:
        return dist.reduce_scatter_single(
            output=output_tensor, input=input_tensor, op=op, group=group, async_op=async_op
        )


class RowExchange(RankSum):
    """In the place of one group's sum over ranks: rows of each rank's gradient go to whose they are, and are not added.

    `told([(micro-batch, [S]), …])` gets this rank's; the output is left as it is. `dtype`: of the gradients, if it is one; FSDP
    hands them over in 32 bits. Ranks that only go along in a round send nothing.
    """

    def __init__(self, told: Callable[[Sequence[tuple[int, torch.Tensor]]], None], dtype: torch.dtype | None) -> None:
        self._told, self._dtype = told, dtype
        self.begin(StepWork(0, ()))

    def begin(self, work: StepWork) -> None:
        """The rounds of a step, from the first on."""
        self._rounds = iter([work.round(number) for number in range(work.num_rounds)])

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: dist.ReduceOp.RedOpType,
        async_op: bool = False,
    ) -> None:
        leaves, size = next(self._rounds), output_tensor.numel()
        dtype = self._dtype or input_tensor.dtype
        received = [size if rank in leaves else 0 for rank in range(group.size())]
        works = group.rank() in leaves
        outgoing = input_tensor.to(dtype) if works else input_tensor[:0].to(dtype)
        sent = [size if works else 0] * group.size()
        incoming = torch.empty(sum(received), dtype=dtype, device=input_tensor.device)
        dist.all_to_all_single(incoming, outgoing, received, sent, group=group)
        self._told(list(zip(leaves.values(), incoming.split(size), strict=False)))
