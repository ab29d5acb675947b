"""Which rank does which micro-batches of an optimizer step, also of a step that another world began.

A micro-batch is named by its place in the global batch. In round i every rank does the i-th of its remaining ones; a rank that
has none left sits the round out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainer_client.mixture import rank_share


@dataclass(frozen=True, slots=True)
class StepWork:
    """`remaining[r]`: the micro-batches that rank r still has to do, in order, out of `num_micro` in the step."""

    num_micro: int
    remaining: tuple[tuple[int, ...], ...]

    @classmethod
    def whole(cls, num_micro: int, world_size: int) -> StepWork:
        """A step that nobody has begun."""
        return cls(num_micro, _cut(range(num_micro), world_size))

    @property
    def num_rounds(self) -> int:
        return max(len(share) for share in self.remaining)

    @property
    def num_done(self) -> int:
        return self.num_micro - sum(len(share) for share in self.remaining)

    def after(self, num_rounds: int) -> StepWork:
        """What remains once that many rounds are done."""
        return StepWork(self.num_micro, tuple(share[num_rounds:] for share in self.remaining))

    def for_world(self, world_size: int) -> StepWork:
        """The same work for another number of ranks; unchanged for the same number, so that sums keep their order."""
        if world_size == len(self.remaining):
            return self
        return StepWork(self.num_micro, _cut(sorted(index for share in self.remaining for index in share), world_size))


def _cut(indices: Sequence[int], world_size: int) -> tuple[tuple[int, ...], ...]:
    """Consecutive parts whose sizes differ by one at most."""
    shares = (rank_share(len(indices), rank, world_size) for rank in range(world_size))
    return tuple(tuple(indices[at] for at in share) for share in shares)
