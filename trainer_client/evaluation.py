"""Loss by shard on held-out samples, equal for any number of ranks: nothing is padded, repeated or dropped.

Legend: K shards.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from trainer_client.agreement import Agreement
from trainer_client.encoding import BatchSource, collate
from trainer_client.loss import sample_losses
from trainer_client.mixture import rank_share


@torch.no_grad()
def evaluate_shards(model: nn.Module, source: BatchSource, agreement: Agreement) -> dict[str, tuple[float, int, int]]:
    """Shard id -> (loss sum in nats, supervised tokens, samples) over all ranks (collective). Only shards that hold some out."""
    held = source.shards.held_out()
    names = source.mixture.names
    sums = torch.zeros(3, len(names), dtype=torch.float64)
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    num_batches = -(-len(held) // source.micro_batch)
    for batch in rank_share(num_batches, agreement.rank, agreement.world_size):
        rows = held[batch * source.micro_batch : (batch + 1) * source.micro_batch]
        encoded = source.encoder.encode([part.read(index) for _, part, index in rows])
        micro = collate(batch, encoded, np.array([shard for shard, _, _ in rows]), source.encoder.pad)
        logits = model(input_ids=micro.input_ids.to(device), use_cache=False).logits
        losses, tokens = sample_losses(logits, micro.labels.to(device))
        where = torch.from_numpy(micro.shard)
        for row, values in enumerate((losses, tokens, torch.ones_like(tokens))):
            sums[row].index_add_(0, where, values.double().cpu())
    model.train(was_training)
    loss_sum, token_sum, samples = agreement.sum_floats(sums).tolist()
    return {
        name: (loss_sum[at], int(token_sum[at]), int(samples[at])) for at, name in enumerate(names) if samples[at] > 0
    }
