"""The micro-batches of one optimizer step, in rounds that all ranks count alike, with control points in between.

Before each round but the first the ranks settle what they asked each other before the round before it, so that asking costs
no waiting: a rank may be one round ahead of another. A SIGTERM is therefore followed at the next micro-step, or the one after
it; directives are looked for with every `check_every`-th round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainer_client.accumulation import Piece
from trainer_client.encoding import MicroBatch
from trainer_client.loss import ShardSums
from trainer_client.partialstep import PartialStep, Sums
from trainer_client.session import Leave
from trainer_client.workshare import StepWork

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin


class LeftInStep(Exception):
    """All ranks leave while an optimizer step is under way; what it holds is in a snapshot, or was not to be kept."""


@dataclass
class StepBatch:
    """This rank's micro-batches of one optimizer step (`work.remaining` of its rank) and what it was begun with.

    `num_supervised`: tokens of the whole global batch; `carried`, `sums`: of a step that is taken up again, else None and empty.
    """

    step: int
    work: StepWork
    micro: list[MicroBatch]
    micro_batch: int
    num_supervised: int
    carried: Mapping[str, Piece] | None = None
    sums: Sums = field(default_factory=dict)
    begun_at: float = field(default_factory=perf_counter)


class StepRunner:
    """Runs the steps of one trainer; `here()` is the step under way while its directives are followed, else None."""

    def __init__(self, trainer: BidirectionalMixin) -> None:
        self._trainer = trainer
        self._answer: Callable[[], Leave | None] | None = None
        self.here: Callable[[], PartialStep] | None = None
        self.sums = ShardSums()
        self.compute_s: float | None = None

    def run(self, model: nn.Module, batch: StepBatch) -> torch.Tensor:
        """Forward and backward of this rank's micro-batches, and the exchange. Raises `LeftInStep` when all are to leave.

        Returns the sum of token losses times world size over tokens of the global batch: its mean over ranks is the loss.
        """
        trainer = self._trainer
        self.sums = ShardSums(carried=batch.sums)
        loss_before = sum(part[0] for part in batch.sums.values()) / max(1, batch.num_supervised)
        total = torch.full((), loss_before, device=trainer.args.device)
        trainer.accumulation.begin(batch.work, batch.carried)
        begun = trainer.forward_done_at = perf_counter()
        for number in range(batch.work.num_rounds):
            self._control(batch, number)
            if number < len(batch.micro):
                total = total + trainer.micro_step(model, batch, batch.micro[number])
                trainer.accumulation.take(batch.micro[number].index)
        self.compute_s = trainer.forward_done_at - begun if total.device.type == "cpu" else None
        trainer.accumulation.reduce()
        return total * trainer.session.world_size

    def _control(self, batch: StepBatch, number: int) -> None:
        """Settle the question of the last round, and ask the next one unless this is the last."""
        session, options = self._trainer.session, self._trainer.options
        if session.world_size == 1 and number > 0:
            self._answer = session.ask(batch.step, directives=number % options.check_every == 0)
        if self._answer is not None:
            self._settle(batch, number)
        if session.world_size > 1 and number + 1 < batch.work.num_rounds:
            self._answer = session.ask(batch.step, directives=(number + 1) % options.check_every == 0)

    def _settle(self, batch: StepBatch, number: int) -> None:
        assert self._answer is not None
        self.here = lambda: self._put_down(batch, number)
        try:
            leave = self._answer()
            if leave is not None:
                self._trainer.planner.leave_inside(leave, batch.step, self.here())
                raise LeftInStep
        finally:
            self._answer = self.here = None

    def _put_down(self, batch: StepBatch, number: int) -> PartialStep:
        """What this rank holds once `number` rounds are done."""
        return PartialStep(
            batch.work.after(number),
            batch.micro_batch,
            batch.num_supervised,
            self.sums.collect(),
            self._trainer.accumulation.pieces(),
        )
