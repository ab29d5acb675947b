"""How long this process worked itself in an optimizer step, without what it spent waiting for other ranks.

On CPU by the clock, on an accelerator by events of its stream: there the host runs ahead, and waiting is a gap in the stream.
One account for the process, since gradients may leave from within a backward pass, where no argument reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch


class OwnTime:
    """Spans of work and of waiting within them. Not thread-safe: one step at a time."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self.begin(self.device)

    def begin(self, device: torch.device) -> None:
        """A new step on `device`."""
        self.device = device
        self._spans: list[tuple[int, Any, Any]] = []  # +1 for work, -1 for waiting within it; from, to
        self._working = False

    @contextmanager
    def working(self) -> Iterator[None]:
        """What is done within is this rank's own work."""
        self._working = True
        start = self._mark()
        try:
            yield
        finally:
            self._working = False
            self._spans.append((1, start, self._mark()))

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """What passes within is time that other ranks need."""
        start = self._mark() if self._working else None
        yield
        if start is not None:
            self._spans.append((-1, start, self._mark()))

    def own_s(self) -> float:
        """Seconds of own work since `begin`; on an accelerator, waits until the work is done."""
        return max(0.0, sum(sign * self._between(start, stop) for sign, start, stop in self._spans))

    def _mark(self) -> Any:
        if self.device.type != "cuda":
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, start: Any, stop: Any) -> float:
        if isinstance(stop, float):
            return stop - float(start)
        stop.synchronize()
        return float(start.elapsed_time(stop)) / 1000.0


OWN = OwnTime()
