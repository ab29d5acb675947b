"""Whether a model keeps samples that are packed into one row apart: seen in what it computes, not in what it says of itself.

Seen by a gradient, not by how a loss moves: what attention does not look at gets a gradient of exactly zero, in bf16 as in fp32. A
state that is carried along the row gives one that is tiny but not zero, where the loss would be rounded to the same number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer_client.encoding import IGNORED

Losses = Callable[[nn.Module, dict[str, Any]], tuple[torch.Tensor, torch.Tensor]]
MAX_TOKENS = 24  # of a sample in the row


def mixes_samples(losses: Losses, model: nn.Module, *, num_tokens: int, seq_len: int) -> bool:
    """Whether the losses of a sample depend on the one before it in its row (collective in slices).

    `losses` is a trainer's `sample_losses`; `num_tokens`: of the vocabulary. Parameters keep their gradients as they are.
    """
    length = max(2, min(MAX_TOKENS, seq_len // 2))
    before, sample = torch.randint(num_tokens, (2, length), generator=torch.Generator().manual_seed(0))
    embedded: list[torch.Tensor] = []

    def cut(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    hook = model.get_input_embeddings().register_forward_hook(cut)  # type: ignore[operator]
    was_training = model.training
    model.eval()
    try:
        total = losses(model, _row(before, sample, model))[0][:-1].sum()
        (gradient,) = torch.autograd.grad(total, embedded)
    finally:
        hook.remove()
        model.train(was_training)
    return bool((gradient[:, :length] != 0).any())  # NaN is no answer either


def _row(first: torch.Tensor, sample: torch.Tensor, model: nn.Module) -> dict[str, Any]:
    """One row of two samples [T] each; each token of the second one counts as a sample of its own."""
    length, device = len(sample), next(model.parameters()).device
    places, nobody = torch.arange(length), torch.full((length,), length)
    labels = torch.cat([torch.full((length + 1,), IGNORED), sample[1:]])
    fields = {
        "input_ids": torch.cat([first, sample]),
        "labels": labels,
        "position_ids": torch.cat([places, places]),
        "sample": torch.cat([nobody, places]),
    }
    return {name: value[None].to(device) for name, value in fields.items()} | {"num_samples": length}
