"""Token losses by shard, from the logits of the one forward pass.

Legend: N samples, T tokens, V vocabulary, K shards. Sums and counts, never means: they add up exactly over micro-batches and
ranks, and a shard without a supervised token is a count of 0, not a loss of 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from trainer_client.encoding import IGNORED


def sample_losses(
    logits: torch.Tensor, labels: torch.Tensor, sample: torch.Tensor | None = None, num_samples: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of token losses in nats [N] (float32, with gradient) and supervised tokens [N] of each sample.

    `logits` [R, T, V], `labels` [R, T] unshifted, `IGNORED` where not supervised; `sample` [R, T]: the sample of each token, where
    a row is not one. A sample without a supervised token has a sum of exactly 0 and a gradient of 0.
    """
    # The labels are moved, not the logits: a slice of those would be copied, forward and backward.
    targets = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
    flat = F.cross_entropy(
        logits.reshape(-1, logits.shape[-1]).float(), targets.reshape(-1), ignore_index=IGNORED, reduction="none"
    )
    counted = targets != IGNORED
    if sample is None:
        return flat.view(targets.shape).sum(dim=1), counted.sum(dim=1)
    # One sample after the other: a NaN stays with its own, and the order of additions is the same at every run, also on a GPU.
    own = [sample.reshape(-1) == place for place in range(num_samples)]
    losses = [torch.where(mine, flat, 0.0).sum() for mine in own]
    return torch.stack(losses), torch.stack([(counted.reshape(-1) & mine).sum() for mine in own])


@dataclass
class ShardSums:
    """One rank's sums over the micro-batches of a step. Tensors stay on the device until `collect`.

    `carried`: sums of the same step from before it was taken up again; they come first, as if nothing had been in between.
    """

    carried: dict[int, tuple[float, int, int]] = field(default_factory=dict)
    _losses: list[torch.Tensor] = field(default_factory=list)
    _tokens: list[torch.Tensor] = field(default_factory=list)
    _shards: list[np.ndarray] = field(default_factory=list)

    def add(self, losses: torch.Tensor, tokens: torch.Tensor, shards: np.ndarray) -> None:
        """Losses [N] and tokens [N] of samples that belong to `shards` [N]."""
        self._losses.append(losses.detach())
        self._tokens.append(tokens)
        self._shards.append(shards)

    def collect(self) -> dict[int, tuple[float, int, int]]:
        """Shard index -> (loss sum in nats, supervised tokens, samples); float64 sums, NaN stays NaN of its own shard."""
        if not self._shards:
            return dict(self.carried)
        before = list(self.carried.values())
        num_new = sum(len(part) for part in self._shards)
        shard = np.concatenate([np.array(list(self.carried), dtype=np.int64), *self._shards])
        losses = np.concatenate([[part[0] for part in before], torch.cat(self._losses).double().cpu().numpy()])
        tokens = np.concatenate([[part[1] for part in before], torch.cat(self._tokens).cpu().numpy()])
        samples = np.concatenate([[part[2] for part in before], np.ones(num_new)])
        present, inverse = np.unique(shard, return_inverse=True)
        columns = [np.bincount(inverse, weights=column) for column in (losses, tokens, samples)]
        return {
            int(name): (float(columns[0][at]), int(columns[1][at]), int(columns[2][at]))
            for at, name in enumerate(present)
        }
