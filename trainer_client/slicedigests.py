"""Digests of tensors that no rank holds as a whole: equal to those of the whole tensors (`digests`), for any number of ranks.

Each tensor is hashed by one rank, to which the others send their rows, W tensors at a time. So every byte travels once, hashing
is shared, and a rank holds one whole tensor at most, beside rows of W.

Legend: W ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from trainer_client.agreement import Agreement
from trainer_client.digests import Known, leaf_digests

Slice = tuple[torch.Tensor, tuple[int, ...]]  # a rank's rows in CPU memory, and the shape of the whole


def rows_of(num_rows: int, rank: int, world_size: int) -> range:
    """The rows of a tensor that a rank holds: `fully_shard` cuts as torch.chunk does, the last ones may be shorter or empty."""
    size = -(-num_rows // world_size)
    return range(min(rank * size, num_rows), min((rank + 1) * size, num_rows))


def whole_digest(tensor: torch.Tensor) -> Known:
    """The digest of one tensor."""
    return Known(leaf_digests({"": tensor})[""])


def slice_digests(slices: Mapping[str, Slice], agreement: Agreement) -> dict[str, Known]:
    """The digest of each whole tensor, on every rank (collective; all ranks have the same names)."""
    world = agreement.world_size
    # Large ones first, so that those of one turn are about as large and no rank waits long for another.
    names = sorted(slices, key=lambda name: (-_num_bytes(slices[name]), name))
    own: dict[str, Known] = {}
    for start in range(0, len(names), world):
        turn = names[start : start + world]
        whole = _exchanged([slices[name] for name in turn], agreement)
        if whole is not None:
            own[turn[agreement.rank]] = whole_digest(whole)
    return {name: digest for found in agreement.gather(own) for name, digest in found.items()}


def _exchanged(turn: Sequence[Slice], agreement: Agreement) -> torch.Tensor | None:
    """The whole tensor that is this rank's in this turn (collective)."""
    world, rank = agreement.world_size, agreement.rank
    outgoing = [_as_bytes(rows) for rows, _ in turn]
    sent = [part.numel() for part in outgoing] + [0] * (world - len(turn))
    like, shape = turn[rank] if rank < len(turn) else (torch.empty(0, dtype=torch.uint8), (0,))
    width = like.element_size() * torch.Size(shape[1:]).numel()
    received = [len(rows_of(shape[0], other, world)) * width for other in range(world)]
    whole = torch.empty(sum(received), dtype=torch.uint8)
    dist.all_to_all_single(whole, torch.cat(outgoing), received, sent, group=agreement.group)
    return whole.view(like.dtype).view(shape) if rank < len(turn) else None


def _num_bytes(one: Slice) -> int:
    return one[0].element_size() * torch.Size(one[1]).numel()


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
