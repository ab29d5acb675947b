"""Loss by shard on held-out samples, equal for any number of ranks: nothing is padded, repeated or dropped.

Legend: K shards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from trainer_client.agreement import Agreement
from trainer_client.encoding import BatchSource, collate
from trainer_client.loss import sample_losses
from trainer_client.mixture import rank_share

Ask = Callable[[], Callable[[], object | None]]  # a question to all ranks; the answer is what makes them break off


@torch.no_grad()
def evaluate_shards(
    model: nn.Module, source: BatchSource, agreement: Agreement, ask: Ask | None = None
) -> dict[str, tuple[float, int, int]] | None:
    """Shard id -> (loss sum in nats, supervised tokens, samples) over all ranks (collective). Only shards that hold some out.

    None where `ask` had an answer between two batches.
    """
    was_training = model.training
    model.eval()
    sums = _sums(model, source, agreement, ask)
    model.train(was_training)
    if sums is None:
        return None
    loss_sum, token_sum, samples = agreement.sum_floats(sums).tolist()
    return {
        name: (loss_sum[at], int(token_sum[at]), int(samples[at]))
        for at, name in enumerate(source.mixture.names)
        if samples[at] > 0
    }


def _sums(model: nn.Module, source: BatchSource, agreement: Agreement, ask: Ask | None) -> torch.Tensor | None:
    """This rank's [3, K] loss sums, tokens and samples. All ranks count the same rounds, also those with nothing left to do."""
    held = source.shards.held_out()
    num_batches = -(-len(held) // source.micro_batch)
    share = rank_share(num_batches, agreement.rank, agreement.world_size)
    sums = torch.zeros(3, len(source.mixture.names), dtype=torch.float64)
    answer = None
    for number in range(len(rank_share(num_batches, 0, agreement.world_size))):
        if answer is not None and answer() is not None:
            return None
        answer = ask() if ask is not None else None
        if number < len(share):
            _add_batch(sums, model, source, held, share[number])
    return None if answer is not None and answer() is not None else sums


def _add_batch(sums: torch.Tensor, model: nn.Module, source: BatchSource, held: list[Any], batch: int) -> None:
    device = next(model.parameters()).device
    rows = held[batch * source.micro_batch : (batch + 1) * source.micro_batch]
    encoded = source.encoder.encode([part.read(index) for _, part, index in rows])
    micro = collate(batch, encoded, np.array([shard for shard, _, _ in rows]), source.encoder.pad)
    logits = model(input_ids=micro.input_ids.to(device), use_cache=False).logits
    losses, tokens = sample_losses(logits, micro.labels.to(device))
    where = torch.from_numpy(micro.shard)
    for row, values in enumerate((losses, tokens, torch.ones_like(tokens))):
        sums[row].index_add_(0, where, values.double().cpu())
