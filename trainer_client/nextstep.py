"""What comes next at a boundary between optimizer steps: a batch that all ranks agree on, or the end.

Also the ways out: before a step, and inside one. The state is saved first, unless the leave says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainer_client.partialstep import PartialStep
from trainer_client.protocol import EXIT_SUPERSEDED
from trainer_client.session import Leave
from trainer_client.stepping import StepBatch
from trainer_client.workshare import StepWork

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin


class StepPlanner:
    """One trainer's; every method is collective."""

    def __init__(self, trainer: BidirectionalMixin) -> None:
        self._trainer = trainer

    def agreed_batch(self, step: int) -> StepBatch | None:
        """All ranks agree on what applies at `step` and on the token count of its global batch; None to leave."""
        trainer = self._trainer
        if trainer.resumption is not None and trainer.resumption.partial is not None:
            return self._resumed_batch(step, trainer.resumption.partial)
        self._take_in_growth(step)
        while True:
            batch = self._fresh_batch(step)
            control = trainer.session.control_point(step, [batch.num_supervised, int(trainer.saver.failed())])
            if control.sums[1]:
                trainer.saver.settle()
            leave = self._superseded() if trainer.saver.stale else control.leave
            if leave is not None:
                self._leave_with(leave, step)
                return None
            if not control.changed:
                return replace(batch, num_supervised=control.sums[0])

    def _take_in_growth(self, step: int) -> None:
        """Data sets that have grown since the snapshot join with the first whole step; new samples come within this epoch."""
        source = self._trainer.source
        for name, num_samples in source.grown().items():
            source.mixture.apply(
                step, {"action": "add_shard", "shard": name, "num_samples": num_samples, "mode": "extend"}
            )
            self._trainer.session.say(f"{name}: {num_samples} new samples from step {step} on")

    def _fresh_batch(self, step: int) -> StepBatch:
        """A whole step; `num_supervised` counts this rank's tokens."""
        source, session = self._trainer.source, self._trainer.session
        plan = source.mixture.plan(step)
        num_micro, world = source.num_micro_batches(plan), session.world_size
        whole = self._trainer.slices is None
        work = (
            StepWork.whole(num_micro, world, self._trainer.controls.shares)
            if whole
            else StepWork.dealt(num_micro, world)
        )
        micro = source.build(plan, work.remaining[session.rank])
        return StepBatch(step, work, micro, source.micro_batch, sum(item.num_supervised for item in micro))

    def _resumed_batch(self, step: int, partial: PartialStep) -> StepBatch | None:
        """The rest of a step that a snapshot holds. Nothing may change the step now; leaving needs no new snapshot."""
        trainer, work = self._trainer, partial.work
        assert trainer.resumption is not None
        trainer.leave = trainer.session.ask(step)()
        if trainer.leave is not None:
            return None
        trainer.resumption.partial = None
        plan = trainer.source.mixture.plan(step)
        micro = trainer.source.build(plan, work.remaining[trainer.session.rank], partial.micro_batch)
        trainer.session.say(f"step {step} goes on after {work.num_done} of {work.num_micro} micro-batches")
        begun = StepBatch(step, work, micro, partial.micro_batch, partial.num_supervised)
        return replace(begun, carried=partial.pieces, sums=partial.sums, mode=partial.mode)

    def leave_inside(self, leave: Leave, step: int, here: PartialStep) -> None:
        """All leave while `step` is under way."""
        done = f"{here.work.num_done} of {here.work.num_micro} micro-batches"
        self._trainer.session.say(f"leaving inside step {step}, after {done}: {leave.reason}")
        self._leave_with(leave, step, here)

    def save_now(self, step: int) -> str:
        """A snapshot of this very moment, inside a step too; why it failed, or nothing."""
        here = self._trainer.runner.here
        return self._trainer.saver.save(step, here() if here is not None else None)

    def _leave_with(self, leave: Leave, step: int, partial: PartialStep | None = None) -> None:
        trainer = self._trainer
        trainer.leave = leave
        if partial is None:
            trainer.session.say(f"leaving before step {step}: {leave.reason}")
        trouble = trainer.saver.save(step, partial) if leave.save else trainer.saver.settle()
        if trainer.saver.stale:
            trainer.leave = self._superseded()
        elif leave.save and trouble:
            trainer.leave = replace(
                leave, reason=f"{leave.reason}; {trouble}; what came after the last snapshot is lost"
            )

    @staticmethod
    def _superseded() -> Leave:
        return Leave("stopped", EXIT_SUPERSEDED, "a newer attempt has taken over the snapshots", save=False)
