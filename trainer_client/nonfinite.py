"""Steps without a finite gradient: counted, told, dealt with, and after too many the end of the run."""

from __future__ import annotations

import math
from collections.abc import Callable

from trainer_client.options import BidirectionalOptions
from trainer_client.session import Leave

EXIT_DIVERGED = 1


class NonfiniteGuard:
    """Judges the gradient norm of each step, which is the same on all ranks."""

    def __init__(self, options: BidirectionalOptions, say: Callable[[str, str], None]) -> None:
        self._options, self._say = options, say
        self.count = 0
        self.leave: Leave | None = None
        self._in_a_row = 0

    def skips(self, norm: float, step: int) -> bool:
        """Whether the update of `step` is to be left out. Sets `leave` when the run is to end as diverged."""
        if math.isfinite(norm):
            self._in_a_row = 0
            return False
        self.count += 1
        self._in_a_row += 1
        applied = self._options.on_nonfinite == "apply"
        done = "applied all the same" if applied else "skipped"
        self._say(f"step {step}: gradient norm {norm}; the update is {done} ({self.count} in all)", "warning")
        if self._options.on_nonfinite == "stop" or self._in_a_row >= self._options.max_nonfinite:
            reason = f"diverged: {self._in_a_row} steps in a row without a finite gradient, up to step {step}"
            self.leave = Leave("failed", EXIT_DIVERGED, reason, save=False, args={"failure_class": "diverged"})
        return not applied
