"""From which shard each sample of a global batch comes: stratified sampling from the weights.

Legend: K shards, B samples of a global batch, S steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainer_client.permutation import combine, uniform

_DRAW, _ORDER = 1, 2


def shards_drawn(
    weight: NDArray[np.float64], steps: NDArray[np.uint64], global_batch: int, seed: int
) -> NDArray[np.int64]:
    """Shard index [S, B] by weight [K]: one draw from each of B equal strata of the weights, in an order that is shuffled too."""
    active = np.flatnonzero(weight > 0)
    edges = np.cumsum(weight[active])
    places = np.arange(global_batch, dtype=np.uint64)
    keys = combine(seed & (2**64 - 1), _DRAW, steps[:, None], places[None, :])
    points = (places[None, :].astype(np.float64) + uniform(keys)) / global_batch
    picked = np.searchsorted(edges, points * edges[-1], side="right")
    shard = active[np.minimum(picked, len(active) - 1)]
    order = np.argsort(combine(keys, _ORDER), axis=1, kind="stable")
    return np.take_along_axis(shard, order, axis=1).astype(np.int64)
