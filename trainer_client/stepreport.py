"""What a trainer tells about a step that it has done."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trainer_client.owntime import OWN
from trainer_client.stepping import StepBatch

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin


def step_tell(trainer: BidirectionalMixin, batch: StepBatch, *, grad_norm: float | None, lr: float) -> None:
    """This rank's numbers of the step of `batch`, to its session."""
    names = trainer.source.mixture.names
    sums = trainer.runner.sums.collect()
    trainer.session.report_step(
        batch.step,
        step_time_s=time.perf_counter() - batch.begun_at,
        tokens=sum(tokens for _, tokens, _ in sums.values()),
        grad_norm=grad_norm,
        lr=lr,
        compute_s=OWN.own_s() if trainer.slices is None else None,  # in slices it is full of waiting
        num_micro=trainer.runner.num_done,
        shards={names[shard]: values for shard, values in sums.items()},
    )
