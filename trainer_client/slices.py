"""A model in slices: of every parameter, moment and gradient each rank holds some rows (FSDP2, `fully_shard`).

Each block of the model is one group, and what is left another; a group's parameters are whole only while it computes. Every
forward and backward pass is collective, so a rank without a micro-batch of its own goes along with one that counts for nothing.
Gradients cross the ranks with each micro-batch (`sliceaccumulation`): what the ranks hold together is the gradient so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from trainer_client.agreement import Agreement
from trainer_client.encoding import IGNORED
from trainer_client.export import WeightsExporter
from trainer_client.training_state import model_state


class Slices:
    """Cuts `model` in place, for the ranks of `agreement` (collective; every rank has loaded all of it)."""

    def __init__(self, model: nn.Module, agreement: Agreement) -> None:
        device = torch.device("cuda" if "nccl" in dist.get_backend() else "cpu")
        mesh = init_device_mesh(device.type, (agreement.world_size,))
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        for module in (*blocks(model), model):
            # One at a time: weights that lie in a mapped file come into memory only now, and most of them go again.
            agreement.copy_from_first(_brought(module, device, has_content=agreement.rank == 0))
            fully_shard(module, mesh=mesh, mp_policy=policy)
        self.model = model
        self.groups = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for group in self.groups:
            # Sums, never means; and as many gradients on every rank, or they would wait for each other.
            group.set_gradient_divide_factor(1.0)
            group.set_force_sum_reduction_for_comms(True)
            group.set_reduce_scatter_unused_params(True, recurse=False)

    def put_away(self) -> None:
        """Nothing stays whole, after a forward pass without a backward one."""
        for group in self.groups:
            group.reshard()

    def gathered(self, state: Mapping[str, torch.Tensor], *, keep: bool) -> dict[str, torch.Tensor]:
        """Whole tensors in CPU memory where `keep`, else nothing (collective, a tensor at a time). Tied ones share memory."""
        tied = {name: id(parameter) for name, parameter in self.model.named_parameters(remove_duplicate=False)}
        seen: dict[int, torch.Tensor | None] = {}
        for name, tensor in state.items():
            which = tied.get(name, id(tensor))
            if which not in seen:
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                seen[which] = whole.detach().to("cpu", copy=True) if keep else None
        found = {name: seen[tied.get(name, id(tensor))] for name, tensor in state.items()}
        return {name: whole for name, whole in found.items() if whole is not None}


class SliceExporter(WeightsExporter):
    """As `WeightsExporter`, called on every rank; rank 0 gets the whole weights, in CPU memory, and writes them."""

    is_collective = True

    def __init__(self, slices: Slices, agreement: Agreement, *args: Any) -> None:
        super().__init__(*args)
        self._slices, self._agreement = slices, agreement

    def export(self, step: int) -> bool:
        """Begin to export the weights as they are now (collective)."""
        is_first = self._agreement.rank == 0
        due = bool(self._agreement.broadcast(self._is_due(step) if is_first else None))
        if due:
            staged = self._slices.gathered(model_state(self._model), keep=is_first)
            if is_first:
                self._begin(step, staged)
        return due


def nothing(device: torch.device) -> dict[str, torch.Tensor]:
    """A micro-batch of one sample whose tokens [1, 2] are not supervised."""
    tokens = torch.zeros(1, 2, dtype=torch.long, device=device)
    return {"input_ids": tokens, "labels": torch.full_like(tokens, IGNORED)}


def blocks(model: nn.Module) -> list[nn.Module]:
    """The layers of a model that are not to be split, as transformers names them; else those of its largest list."""
    names = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    found = [module for module in model.modules() if type(module).__name__ in names]
    if found:
        return found
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList) and len(module) > 1]
    return [*max(lists, key=_num_elements)] if lists else []


def _brought(module: nn.Module, device: torch.device, *, has_content: bool) -> Iterator[torch.Tensor]:
    """What is not in slices yet, on `device`: as it is, or room for what another rank has.

    Room of its own: what is written over a mapped file stays in memory for as long as anything of that file is in use.
    """
    for tensor in chain(module.parameters(), module.buffers()):
        if not isinstance(tensor, DTensor):
            tensor.data = tensor.data.to(device) if has_content else torch.empty_like(tensor.data, device=device)
            yield tensor


def _num_elements(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's rows of a slice; a whole tensor as it is."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def like(parameter: torch.Tensor, rows: torch.Tensor) -> DTensor:
    """`rows` as this rank's slice of a tensor that is cut as `parameter` is."""
    assert isinstance(parameter, DTensor)
    own = rows.to(local(parameter).device)
    return DTensor.from_local(
        own, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )
