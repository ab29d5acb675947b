"""The loss of a whole job over its steps, for the fit to its target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jobs.models import Evaluation, Job
from jobs.selectors.series import shard_series

MAX_BINS = 256
GOAL_STEPS = 20  # at least so many of the newest steps are pooled before a target counts as reached


@dataclass(frozen=True)
class LossCurve:
    """Pooled over shards, on the surviving branch: bins with data only. B bins."""

    steps: NDArray[np.float64]  # [B] middle of the bin
    loss: NDArray[np.float64]  # [B] nats per token
    tokens: NDArray[np.float64]  # [B]
    width: int  # steps per bin

    def newest_loss(self) -> float | None:
        """Mean over the newest bins that hold `GOAL_STEPS` steps together, None before there are so many."""
        num = -(-GOAL_STEPS // self.width)
        if len(self.loss) < num:
            return None
        tokens = self.tokens[-num:]
        return float((self.loss[-num:] * tokens).sum() / tokens.sum())


def loss_curve(job: Job) -> LossCurve:
    """The job's curve at the finest level that has at most `MAX_BINS` bins."""
    level = 0
    while job.current_step / 4**level > MAX_BINS:
        level += 1
    series = shard_series(job, level=level)
    loss_sum, tokens = series.loss_sum.sum(axis=0).astype(float), series.tokens.sum(axis=0).astype(float)
    seen = tokens > 0
    middle = series.bins[seen] + series.width / 2
    return LossCurve(middle, loss_sum[seen] / tokens[seen], tokens[seen], series.width)


def held_out_curve(job: Job) -> LossCurve:
    """Its evaluations on the surviving branch, those with a finite loss."""
    points: dict[int, tuple[float, int]] = {}
    rows = Evaluation.objects.filter(attempt__job=job).order_by("attempt__fence", "step")
    fence = 0
    for step, loss, tokens, number, start in rows.values_list(
        "step", "loss", "tokens", "attempt__fence", "attempt__start_step"
    ):
        if number != fence:
            fence, points = number, {at: point for at, point in points.items() if at <= start}
        if loss is not None:
            points[step] = (loss, tokens)
    values = list(points.values())
    return LossCurve(
        np.array(list(points), float),
        np.array([loss for loss, _ in values]),
        np.array([float(n) for _, n in values]),
        1,
    )
