"""How fast each worker of a running attempt is in its own work, and how a step would be shared out by that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from jobs.models import Attempt, Worker
from jobs.places import place_of
from trainer_client.workshare import share_sizes

SLOW = 1.15  # times the others': a synchronous step waits for the slowest


@dataclass(frozen=True)
class PaceLine:
    """A worker. `factor`: its own time for a micro-batch over the median of the others', None without anybody to compare with."""

    worker: Worker
    place: int
    factor: float | None
    suggested: int | None  # micro-batches of a step by the speeds measured now

    @property
    def is_slow(self) -> bool:
        return self.factor is not None and self.factor >= SLOW

    @property
    def is_throttled(self) -> bool:
        return (self.worker.system or {}).get("throttled") is True

    @property
    def own_s(self) -> float | None:
        """Its own work in a step."""
        if self.worker.micro_time_s is None or self.worker.num_micro is None:
            return None
        return self.worker.micro_time_s * self.worker.num_micro


def pace_lines(*, attempt: Attempt, workers: Sequence[Worker]) -> list[PaceLine]:
    """One line for each worker, by rank. No query."""
    factors, sizes = pace_factors(workers), _suggested(workers)
    return [
        PaceLine(worker, place_of(attempt.places, worker.rank), factors.get(worker.rank), sizes.get(worker.rank))
        for worker in workers
    ]


def pace_factors(workers: Sequence[Worker]) -> dict[int, float]:
    """Rank -> own time over the median of the others', for workers of one attempt; by wall time where no own time is known."""
    own = {w.rank: w.micro_time_s for w in workers if w.micro_time_s}
    times = own if len(own) > 1 else {w.rank: w.step_time_s for w in workers if w.step_time_s}
    found = {}
    for rank, time_s in times.items():
        if others := [t for r, t in times.items() if r != rank]:
            found[rank] = time_s / median(others)
    return found


def _suggested(workers: Sequence[Worker]) -> dict[int, int]:
    """Rank -> micro-batches; empty while a worker's own time or share is not known."""
    times = [w.micro_time_s for w in workers if w.micro_time_s]
    total = round(sum(w.num_micro or 0 for w in workers))
    if len(times) < max(2, len(workers)) or total < 1:
        return {}
    sizes = share_sizes(total, tuple(round(min(times) / t, 3) for t in times))
    return {worker.rank: size for worker, size in zip(workers, sizes, strict=True)}
