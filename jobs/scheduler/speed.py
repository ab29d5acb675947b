"""How fast a job is with other numbers of workers, from the step times it has shown.

Amdahl's law (AFIPS 1967): a step of n workers takes t1 * (s + (1 - s) / n). The share s that more workers do not shorten is
the one of a short list that fits the measured sizes best, so that jobs that behave alike are planned in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

SERIAL_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0)
PRIOR_SHARE = 0.1  # where only one size was seen


@dataclass(frozen=True)
class Speed:
    """Seconds a step takes with one worker, and the share of it that more workers do not shorten."""

    step_time_1_s: float
    serial_share: float = PRIOR_SHARE

    def step_time_s(self, num_workers: int) -> float:
        return self.step_time_1_s * (self.serial_share + (1 - self.serial_share) / num_workers)

    def curve(self, most: int) -> tuple[float, ...]:
        """H(0..most): steps in the time that one worker takes for one."""
        return (0.0, *(self.step_time_1_s / self.step_time_s(n) for n in range(1, most + 1)))


def speed_of(*, measured_s: Mapping[int, float], now: tuple[int, float] | None = None) -> Speed | None:
    """From measured step times by number of workers; `now` is the size that runs, whose time is kept exactly.

    None if nothing is known.
    """
    seen = {n: t for n, t in {**measured_s, **({now[0]: now[1]} if now else {})}.items() if n > 0 and t > 0}
    if not seen:
        return None
    share = min(SERIAL_SHARES, key=lambda s: _misfit(s, seen)) if len(seen) > 1 else PRIOR_SHARE
    anchor = now[0] if now and now[0] in seen else max(seen)
    return Speed(seen[anchor] / (share + (1 - share) / anchor), share)


def _misfit(share: float, seen: Mapping[int, float]) -> float:
    """Spread of the one-worker times that the sizes imply, on a log scale."""
    ones = [math.log(t / (share + (1 - share) / n)) for n, t in seen.items()]
    mean = sum(ones) / len(ones)
    return sum((one - mean) ** 2 for one in ones)


def pace_spread(times: list[float]) -> float:
    """Relative standard deviation of the time still needed, from how far the known paces differ. 0.3 where nothing is known."""
    if not times:
        return 0.3
    if len(times) == 1:
        return 0.2
    middle = sum(times) / len(times)
    return min(0.4, max(0.05, (max(times) - min(times)) / 2 / middle))
