"""The micro-batches of one optimizer step, in rounds that all ranks count alike, with control points in between.

Before a round the ranks settle what they asked each other before the round before it, so that asking costs no waiting: a rank
may be one round ahead of another; with unequal shares as many as pass while the smallest share does one micro-batch
(`StepWork.lead`). A SIGTERM or an order to leave is therefore followed at the next micro-step, or the one after it; what else can
be followed inside a step is looked for with every `check_every`-th round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

import torch
from torch import nn

from trainer_client.accumulation import Accumulation, Piece
from trainer_client.apart import check_parts, watch_first_pass
from trainer_client.encoding import MicroBatch
from trainer_client.faults import planted_slowness
from trainer_client.loss import ShardSums
from trainer_client.owntime import OWN
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

    `num_supervised`: tokens of the whole global batch; `carried`, `sums`, `mode`: of a step that is taken up again, else None and
    empty; such a step goes on in the fidelity in which it was begun.
    """

    step: int
    work: StepWork
    micro: list[MicroBatch]
    micro_batch: int
    num_supervised: int
    carried: Mapping[str, Piece] | None = None
    sums: Sums = field(default_factory=dict)
    mode: str = ""
    begun_at: float = field(default_factory=perf_counter)


class StepRunner:
    """Runs the steps of one trainer; `here()` is the step under way while its directives are followed, else None."""

    def __init__(self, trainer: BidirectionalMixin) -> None:
        self._trainer = trainer
        self._asked: deque[Callable[[], Leave | None]] = deque()
        self._slowness = planted_slowness(trainer.session.rank)
        self.here: Callable[[], PartialStep] | None = None
        self.sums = ShardSums()
        self.num_done = 0  # micro-batches of this rank in the step under way, or the last one
        check_parts(trainer.model)
        session = trainer.session
        watch_first_pass(trainer.model, session.world_size, in_slices=trainer.slices is not None, say=session.say)

    def run(self, model: nn.Module, batch: StepBatch) -> torch.Tensor:
        """Forward and backward of this rank's micro-batches, and the exchange. Raises `LeftInStep` when all are to leave.

        Returns the sum of token losses times world size over tokens of the global batch: its mean over ranks is the loss.
        """
        trainer = self._trainer
        self.sums = ShardSums(carried=batch.sums)
        loss_before = sum(part[0] for part in batch.sums.values()) / max(1, batch.num_supervised)
        total = torch.full((), loss_before, device=trainer.args.device)
        accumulation = self._accumulation(batch.mode or trainer.options.fidelity)
        accumulation.begin(batch.work, batch.carried)
        OWN.begin(total.device)
        self._asked.clear()
        self.num_done = 0
        for number in range(batch.work.num_rounds):
            self._control(batch, number)
            if batch.work.works(trainer.session.rank, number):
                total = total + self._micro_step(model, batch, batch.micro[self.num_done])
                self.num_done += 1
            else:
                trainer.sit_out()
        accumulation.reduce()
        return total * trainer.session.world_size

    def _accumulation(self, mode: str) -> Accumulation:
        """The trainer's, changed where it is of another fidelity."""
        trainer = self._trainer
        if trainer.accumulation.mode != mode:
            trainer.accumulation.close()
            trainer.accumulation = trainer.accumulation_in(mode)
        return trainer.accumulation

    def _micro_step(self, model: nn.Module, batch: StepBatch, micro: MicroBatch) -> torch.Tensor:
        with OWN.working():
            begun = perf_counter()
            loss = self._trainer.micro_step(model, batch, micro)
            self._trainer.accumulation.take(micro.index)
            if self._slowness is not None:
                self._slowness(perf_counter() - begun)
        return loss

    def _control(self, batch: StepBatch, number: int) -> None:
        """Settle the question of `lead` rounds ago, and ask the next one if it will be settled in this step."""
        session, options, work = self._trainer.session, self._trainer.options, batch.work
        if session.world_size == 1 and number > 0:
            self._asked.append(session.ask(batch.step, directives=number % options.check_every == 0))
            self._settle(batch, number)
        if session.world_size == 1:
            return
        if number >= work.lead:
            self._settle(batch, number)
        if number + work.lead < work.num_rounds:
            self._asked.append(session.ask(batch.step, directives=(number + work.lead) % options.check_every == 0))

    def _settle(self, batch: StepBatch, number: int) -> None:
        """The oldest open question. Those that stay open when all leave were asked by all ranks alike."""
        self.here = lambda: self._put_down(batch, number)
        try:
            leave = self._asked.popleft()()
            if leave is not None:
                self._trainer.planner.leave_inside(leave, batch.step, self.here())
                raise LeftInStep
        finally:
            self.here = None

    def _put_down(self, batch: StepBatch, number: int) -> PartialStep:
        """What this rank holds once `number` rounds are done."""
        return PartialStep(
            batch.work.after(number),
            batch.micro_batch,
            batch.num_supervised,
            self.sums.collect(),
            self._trainer.accumulation.pieces(),
            self._trainer.accumulation.mode,
        )
