"""An optimizer step that is put down in the middle and taken up again, by the same ranks or by others.

What a rank holds of it: its pieces of the gradient (`accumulation`), its sums by shard, and which micro-batches all ranks still
have to do. A snapshot keeps the pieces of each rank apart; over all of them they are the gradient so far, exactly once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trainer_client.accumulation import SUM, Piece
from trainer_client.treeaccumulation import node_of
from trainer_client.treesum import first_leaf
from trainer_client.workshare import StepWork

Sums = dict[int, tuple[float, int, int]]  # shard index -> (loss sum in nats, supervised tokens, samples)


@dataclass(frozen=True, slots=True)
class PartialStep:
    """One rank's view. `micro_batch`: samples of a micro-batch in this step; `num_supervised`: of its whole global batch;
    `mode`: the fidelity in which it was begun."""

    work: StepWork
    micro_batch: int
    num_supervised: int
    sums: Sums
    pieces: Mapping[str, Piece]
    mode: str

    def head(self) -> dict[str, Any]:
        """What all ranks know alike, as JSON-compatible values."""
        return {
            "mode": self.mode,
            "num_micro": self.work.num_micro,
            "remaining": [list(share) for share in self.work.remaining],
            "micro_batch": self.micro_batch,
            "num_supervised": self.num_supervised,
        }


def work_of(head: Mapping[str, Any]) -> StepWork:
    """The work that remained, cut for the world that saved it."""
    return StepWork(head["num_micro"], tuple(tuple(share) for share in head["remaining"]))


def takers(mode: str, work: StepWork, held: Sequence[Sequence[str]], world_size: int) -> list[list[tuple[int, str]]]:
    """By new rank: the pieces (old rank, key) that it takes over. `held[r]`: keys of old rank r; `work` as it was saved.

    The same world keeps what it had. Else rank 0 takes all sums; nodes of a tree go to whoever does the micro-batches that
    follow them, so that subtrees grow together.
    """
    pieces = [(rank, key) for rank, keys in enumerate(held) for key in keys]
    if world_size == len(held):
        return [[piece for piece in pieces if piece[0] == rank] for rank in range(world_size)]
    if mode != "exact":
        return [pieces, *([] for _ in range(world_size - 1))]
    shares = work.for_world(world_size).remaining
    last = max((rank for rank, share in enumerate(shares) if share), default=0)
    taken: list[list[tuple[int, str]]] = [[] for _ in range(world_size)]
    for piece in pieces:
        start = first_leaf(node_of(piece[1]))
        taken[next((rank for rank, share in enumerate(shares) if share and share[-1] > start), last)].append(piece)
    return taken


def together(pieces: Sequence[tuple[str, Piece]]) -> dict[str, Piece]:
    """The pieces that one rank took over: nodes stay apart, sums are added in the order of the ranks, in 32 bits at least."""
    found: dict[str, Piece] = {}
    for key, piece in pieces:
        found[key] = _added(found[key], piece) if key == SUM and key in found else piece
    return found


def _added(left: Piece, right: Piece) -> Piece:
    both = {name: _wide(left[name]) + _wide(right[name]) for name in left.keys() & right.keys()}
    return {name: (both.get(name, left.get(name, right.get(name)))) for name in {**left, **right}}  # type: ignore[misc]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def sums_for(rank: int, saved: Sequence[Sums], world_size: int) -> Sums:
    """The carried sums of a rank: its own in the same world, else all of them on rank 0."""
    if world_size == len(saved):
        return saved[rank]
    total: Sums = {}
    for sums in saved if rank == 0 else ():
        for shard, (loss, tokens, samples) in sums.items():
            before = total.get(shard, (0.0, 0, 0))
            total[shard] = (before[0] + loss, before[1] + tokens, before[2] + samples)
    return total
