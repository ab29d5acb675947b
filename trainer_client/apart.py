"""Models whose forward pass depends on which worker does it, or with whom: refused by name, as no resize could keep their weights.

What is known by its type is refused at the start. The rest is seen in the first forward pass of the training: collectives, and
buffers that each worker changes for itself. BatchNorm is let be: its running statistics do not decide what is trained (`takeup`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DataParallel, DistributedDataParallel

REFUSED: dict[type[nn.Module], str] = {
    nn.SyncBatchNorm: "normalises over the samples of all workers, so that weights depend on their number: use BatchNorm",
    DistributedDataParallel: "exchanges gradients, as the trainer does: give it the module inside",
    DataParallel: "splits micro-batches: give it the module inside",
}


class ModelRefused(ValueError):
    """A model that cannot be trained by workers that come and go; the message names the part."""


def check_parts(model: nn.Module) -> None:
    """`ModelRefused` for a part of a type that does not go with workers that come and go."""
    for name, part in model.named_modules():
        for kind, why in REFUSED.items():
            if isinstance(part, kind):
                raise ModelRefused(f"{name or 'the model'}: {kind.__name__} {why}")


def watch_first_pass(model: nn.Module, num_workers: int, *, in_slices: bool, say: Callable[[str, str], None]) -> None:
    """Let the first forward pass of the training end with `ModelRefused`. Of one worker it is said what several could not do."""
    before: dict[str, Any] = {}

    def begin(module: nn.Module, args: Any) -> None:
        if module.training:
            before.update(
                num_collectives=_num_collectives(), buffers={name: part.clone() for name, part in _buffers(model)}
            )

    def end(module: nn.Module, args: Any, output: Any) -> None:
        if not before:
            return
        hooks[0].remove()
        hooks[1].remove()
        if not in_slices and _num_collectives() != before["num_collectives"]:
            raise ModelRefused(
                f"{type(model).__name__}: its forward pass talks to the other workers, which do other micro-batches"
            )
        changed = _changed(model, before.pop("buffers"))
        if changed and num_workers > 1:
            raise ModelRefused(
                f"{changed}: each worker changes it in its own forward passes, so that weights depend on the workers"
            )
        if changed:
            say(f"{changed} changes with the forward passes: this run can have one worker only", "warning")

    hooks = [model.register_forward_pre_hook(begin), model.register_forward_hook(end)]


def _buffers(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Those that are saved, but for the statistics of normalising layers."""
    return [
        (f"{name}.{own}" if name else own, buffer)
        for name, part in model.named_modules()
        if not isinstance(part, _NormBase)
        for own, buffer in part.named_buffers(recurse=False)
        if own not in part._non_persistent_buffers_set
    ]


def _changed(model: nn.Module, before: Mapping[str, torch.Tensor]) -> str:
    """The name of the first buffer that is another now, or nothing."""
    return next((name for name, part in _buffers(model) if name in before and not torch.equal(part, before[name])), "")


def _num_collectives() -> int:
    """Of this process so far, in all groups."""
    if not dist.is_initialized():
        return 0
    groups: Iterable[Any] = dist.distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)
