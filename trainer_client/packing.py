"""Whether a model keeps samples that are packed into one row apart: seen in what it computes, not in what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer_client.encoding import IGNORED

Losses = Callable[[nn.Module, dict[str, Any]], tuple[torch.Tensor, torch.Tensor]]
MAX_TOKENS = 24  # of a sample in the row
MOVES = {torch.float32: 1e-5, torch.float64: 1e-9}  # relative; experts round by how many tokens of a row they get
MOVES_AT_LOW = 1e-3


@torch.no_grad()
def largest_move(losses: Losses, model: nn.Module, *, num_tokens: int, seq_len: int) -> float:
    """By how much a token's loss moves, relatively, when another sample stands before its own in the row (collective in slices).

    `losses` is a trainer's `sample_losses`; `num_tokens`: of the vocabulary.
    """
    length = max(2, min(MAX_TOKENS, seq_len // 2))
    made = torch.Generator().manual_seed(0)
    one, other, sample = torch.randint(num_tokens, (3, length), generator=made)
    was_training = model.training
    model.eval()
    try:
        before, after = [losses(model, _row(first, sample, model))[0][:-1].double() for first in (one, other)]
    finally:
        model.train(was_training)
    return float(((before - after).abs() / before.abs().clamp_min(1e-12)).max())


def beyond_rounding(move: float, dtype: torch.dtype) -> bool:
    """Whether so much tells of something else than rounding; a loss of a model that keeps samples apart does not move at all."""
    return not move <= MOVES.get(dtype, MOVES_AT_LOW)  # NaN is no answer either


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
