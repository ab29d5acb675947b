"""Small parts of `ElasticLoop`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer_client.agreement import Agreement
from trainer_client.slices import Slices


@dataclass
class LoopArgs:
    """What a Trainer would have in its arguments."""

    max_steps: int
    seed: int
    device: torch.device
    max_grad_norm: float  # 0: no clipping


class NoExport:
    """In the place of an exporter."""

    is_collective = False

    def export(self, step: int) -> bool:
        return False

    def wait(self, timeout_s: float = 0.0) -> None:
        return None


def cut_with_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, agreement: Agreement) -> Slices:
    """The slices of `model`, in whose parameters' place the optimizer gets their slices (collective).

    `ValueError` for an optimizer that has a state already, or parameters of something else.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    trained = [[names.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]
    if optimizer.state or any("" in group for group in trained):
        raise ValueError("for slices the optimizer must be new, and hold parameters of the model only")
    for group in optimizer.param_groups:
        group["params"] = []  # whole ones would stay in memory
    slices = Slices(model, agreement)
    sliced = dict(model.named_parameters())
    for group, own in zip(optimizer.param_groups, trained, strict=True):
        group["params"] = [sliced[name] for name in own]
    return slices


def by_sample(loss: torch.Tensor, count: Any, shard: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Losses [N] and counts [N]. A sum of the whole micro-batch stands with its first sample, if all are of one `shard` [N]."""
    counts = torch.as_tensor(count, device=loss.device)
    if loss.dim() and (loss.shape != counts.shape or len(loss) != len(shard)):
        raise ValueError(
            f"loss gave {tuple(loss.shape)} losses and {tuple(counts.shape)} counts for {len(shard)} samples"
        )
    if loss.dim():
        return loss, counts
    if len(set(shard.tolist())) > 1:
        raise ValueError("a micro-batch of several shards needs a loss for each of its samples: return [N], [N]")
    losses, spread = loss.new_zeros(len(shard)), counts.new_zeros(len(shard))
    losses[0], spread[0] = loss, counts
    return losses, spread
