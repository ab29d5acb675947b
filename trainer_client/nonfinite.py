"""Steps without a finite gradient: counted, told, dealt with, and after too many the end of the run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

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


class LoggedLoss:
    """The loss in Trainer's own log: the mean over the steps whose loss is finite and whose update was made.

    Trainer adds losses up; one that is not finite would stay in its sum for ever. An interval that has other steps says how
    many, as `steps_left_out`; the loss of one that has no other is NaN.
    """

    def __init__(self) -> None:
        self._loss = torch.zeros(())
        self._num_steps = self._left_out = 0

    def give(self, loss: torch.Tensor) -> torch.Tensor:
        """What Trainer is to add to its sum for the `loss` [] of a step."""
        self._loss = loss.detach()
        return torch.nan_to_num(self._loss, nan=0.0, posinf=0.0, neginf=0.0)

    def judge(self, total: torch.Tensor, *, skipped: bool) -> None:
        """What became of the step whose loss was given last; `total` [] is Trainer's sum, which has it by now."""
        finite = bool(torch.isfinite(self._loss))
        if skipped and finite:
            total -= self._loss
        self._num_steps += 1
        self._left_out += skipped or not finite

    def put_right(self, logs: dict[str, Any]) -> None:
        """The mean of an interval that has just ended, in place."""
        if "loss" not in logs:
            return
        num_steps, left_out = self._num_steps, self._left_out
        self._num_steps = self._left_out = 0
        if left_out:
            counted = num_steps - left_out
            logs["loss"] = logs["loss"] * num_steps / counted if counted else math.nan
            logs["steps_left_out"] = left_out
