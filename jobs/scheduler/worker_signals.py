"""From reports to a robust signal per worker: is it slower than the others in its own work? Pure.

W workers, B step bins, oldest first. What is compared is the own time for one micro-batch: the wall time of a step is the same for
all, since they wait for the slowest, and the own time of a whole step changes with the share.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np

from jobs.scheduler.signals import others_median


@dataclass(frozen=True)
class WorkerFacts:
    """What is known of one worker. `micro_s` [B]: own seconds for a micro-batch, None where it did none."""

    rank: int
    micro_s: tuple[float | None, ...]
    num_micro: float  # micro-batches of a step, over the window
    throttled: bool = False  # its accelerator says that it is kept slow, by heat for instance


@dataclass(frozen=True)
class WorkerSignal:
    """`factor`: its time over the median of the others', in the middle of the window; `share_high`: bins in which that was high."""

    rank: int
    time_s: float  # own seconds for a micro-batch, median over the window
    factor: float
    share_high: float
    num_bins: int
    throttled: bool


def worker_signals(workers: tuple[WorkerFacts, ...], *, high: float) -> list[WorkerSignal]:
    """One signal for each worker that was measured; none where there is nobody to compare with."""
    times = np.array([[np.nan if t is None else t for t in worker.micro_s] for worker in workers], dtype=float)
    if len(workers) < 2 or times.size == 0:
        return []
    others = np.column_stack([others_median(times[:, b]) for b in range(times.shape[1])])
    with np.errstate(invalid="ignore", divide="ignore"):
        factors = times / others
    found = []
    for worker, own, against in zip(workers, times, factors, strict=True):
        seen = np.isfinite(against)
        if not seen.any():
            continue
        found.append(
            WorkerSignal(
                rank=worker.rank,
                time_s=float(median(own[seen])),
                factor=float(median(against[seen])),
                share_high=float(np.mean(against[seen] >= high)),
                num_bins=int(seen.sum()),
                throttled=worker.throttled,
            )
        )
    return found
