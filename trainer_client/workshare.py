"""Which rank does which micro-batches of an optimizer step, also of a step that another world began.

A micro-batch is named by its place in the global batch. A step goes in rounds that all ranks count alike: as many as the rank
with the most micro-batches has. A rank with fewer sits some rounds out, evenly spread, so that a slow rank with a smaller share
keeps pace with the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise


@dataclass(frozen=True, slots=True)
class StepWork:
    """`remaining[r]`: the micro-batches that rank r still has to do, in order, out of `num_micro` in the step."""

    num_micro: int
    remaining: tuple[tuple[int, ...], ...]

    @classmethod
    def whole(cls, num_micro: int, world_size: int, weights: Sequence[float] = ()) -> StepWork:
        """A step that nobody has begun; in shares near `weights` [W] (speeds of the ranks), equal ones without."""
        return cls(num_micro, _cut(range(num_micro), tuple(weights) or (1.0,) * world_size))

    @classmethod
    def dealt(cls, num_micro: int, world_size: int) -> StepWork:
        """A step that nobody has begun, dealt out like cards: what a round computes lies side by side."""
        return cls(num_micro, _deal(range(num_micro), world_size))

    @property
    def num_rounds(self) -> int:
        return max((len(share) for share in self.remaining), default=0)

    @property
    def num_done(self) -> int:
        return self.num_micro - sum(len(share) for share in self.remaining)

    @property
    def lead(self) -> int:
        """Rounds that pass while the rank with the smallest share does one micro-batch; 1 where shares differ by one at most."""
        fewest = min((len(share) for share in self.remaining if share), default=1)
        return 1 if self.num_rounds - fewest <= 1 else math.ceil(self.num_rounds / fewest)

    def done_by(self, rank: int, num_rounds: int) -> int:
        """Micro-batches of `rank` that are done once that many rounds are: its share spread evenly over all rounds."""
        if not self.num_rounds:
            return 0
        return min(len(self.remaining[rank]), -(-num_rounds * len(self.remaining[rank]) // self.num_rounds))

    def works(self, rank: int, number: int) -> bool:
        """Whether `rank` does a micro-batch in round `number`."""
        return self.done_by(rank, number + 1) > self.done_by(rank, number)

    def round(self, number: int) -> dict[int, int]:
        """Rank -> its micro-batch in that round, of ranks that do one."""
        ranks = (rank for rank in range(len(self.remaining)) if self.works(rank, number))
        return {rank: self.remaining[rank][self.done_by(rank, number)] for rank in ranks}

    def after(self, num_rounds: int) -> StepWork:
        """What remains once that many rounds are done."""
        left = (share[self.done_by(rank, num_rounds) :] for rank, share in enumerate(self.remaining))
        return StepWork(self.num_micro, tuple(left))

    def for_world(self, world_size: int, *, dealt: bool = False) -> StepWork:
        """The same work for another number of ranks; unchanged for the same number, so that sums keep their order."""
        if world_size == len(self.remaining):
            return self
        left = sorted(index for share in self.remaining for index in share)
        return StepWork(self.num_micro, _deal(left, world_size) if dealt else _cut(left, (1.0,) * world_size))


@lru_cache(maxsize=64)
def share_sizes(num_parts: int, weights: tuple[float, ...]) -> tuple[int, ...]:
    """How many of `num_parts` equal parts each rank does, for speeds `weights` [W] (not negative, one above 0).

    First the slowest to end is as early as whole parts allow, then the sizes are as near to proportional as that leaves room for.
    Equal weights give sizes that differ by one at most, the larger first. Exact arithmetic: equal on all ranks.
    """
    speeds = [Fraction(weight) for weight in weights]
    quota = [num_parts * speed / sum(speeds) for speed in speeds]
    fastest = [math.floor(part) for part in quota]
    for _ in range(num_parts - sum(fastest)):
        fastest[_first_to_end(fastest, speeds)] += 1
    end = max(size / speed for size, speed in zip(fastest, speeds, strict=True) if speed)
    most = [math.floor(end * speed) for speed in speeds]
    sizes = [math.floor(part) for part in quota]
    for _ in range(num_parts - sum(sizes)):
        room = [rank for rank, size in enumerate(sizes) if size < most[rank]]
        sizes[max(room, key=lambda rank: (quota[rank] - sizes[rank], -rank))] += 1
    return tuple(sizes)


def _first_to_end(sizes: Sequence[int], speeds: Sequence[Fraction]) -> int:
    """The rank that would end first with one part more."""
    able = [rank for rank, speed in enumerate(speeds) if speed]
    return min(able, key=lambda rank: ((sizes[rank] + 1) / speeds[rank], rank))


def _cut(indices: Sequence[int], weights: tuple[float, ...]) -> tuple[tuple[int, ...], ...]:
    """Consecutive parts, one for each rank."""
    edges = [0, *accumulate(share_sizes(len(indices), weights))]
    return tuple(tuple(indices[start:stop]) for start, stop in pairwise(edges))


def _deal(indices: Sequence[int], world_size: int) -> tuple[tuple[int, ...], ...]:
    """Every rank's part, one index at a time in turn."""
    return tuple(tuple(indices[rank::world_size]) for rank in range(world_size))
