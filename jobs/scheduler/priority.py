"""Who comes first: the priority of the job file, moved by what is known of the job now. Pure.

    effective = file + boost + completion + improvement + slack

| part | points | from |
|---|---|---|
| file | -1000 to 1000 | `priority` of the job file |
| boost | -100 to 100 | a person, or a decision of a rule |
| completion | 0 to 2 | the share done, to the target where one is expected: what ends soon frees its machines soon |
| improvement | -1 to 1 | expected relative fall of the loss per USD, on a log scale: +1 from four times the team's middle |
| slack | 0 to 3 | time to the deadline that is not needed at full size: none left gives 3, half of it or more 0 |

The parts that are worked out span 7 points together, so that priorities of the file that are farther apart than that decide
alone. The ideas are those of shortest remaining time, of quality-driven scheduling (SLAQ, Zhang et al., SoCC'17) and of least
laxity; their sum is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

MAX_PRIORITY = 1000  # of the file, up and down
MAX_COMPLETION, MAX_IMPROVEMENT, MAX_SLACK = 2.0, 1.0, 3.0
FULL_IMPROVEMENT = 4.0  # times the middle, or a fourth of it
FREE_SLACK = 0.5  # of the time left: as much as that is no hurry
NEAR_GOAL = 0.02  # of the whole job: what has no more to go is never stopped for another


@dataclass(frozen=True)
class Contender:
    """A job that wants machines. Times in seconds; None where nothing is known."""

    file: int
    boost: int = 0
    step: int = 0
    end_step: float = 1.0  # where it is expected to end
    time_left_s: float | None = None
    time_needed_s: float | None = None  # at full size, from now
    fall_per_usd: float | None = None  # expected relative fall of the loss

    @property
    def share_done(self) -> float:
        return min(1.0, self.step / max(1.0, self.end_step))

    @property
    def is_protected(self) -> bool:
        """Whether it is so near its goal that it is never stopped for another job."""
        return self.step > 0 and 1.0 - self.share_done <= NEAR_GOAL


@dataclass(frozen=True)
class Priority:
    """The sum and its parts, in points."""

    file: int
    boost: int
    completion: float
    improvement: float
    slack: float
    is_protected: bool = False

    @property
    def effective(self) -> float:
        return round(self.file + self.boost + self.completion + self.improvement + self.slack, 3)

    def as_json(self) -> dict[str, Any]:
        return {"effective": self.effective, **asdict(self)}


def priorities(contenders: Sequence[Contender], gains: Sequence[float] = ()) -> list[Priority]:
    """The priority of each of a team's jobs, in the order given. `gains`: the falls per USD of its other jobs."""
    known = [c.fall_per_usd for c in contenders if c.fall_per_usd is not None]
    rising = [gain for gain in (*known, *gains) if gain > 0]
    middle = median(rising) if rising else None
    return [
        Priority(
            file=c.file,
            boost=c.boost,
            completion=round(MAX_COMPLETION * c.share_done, 3),
            improvement=round(_improvement(c.fall_per_usd, middle), 3),
            slack=round(_slack(c), 3),
            is_protected=c.is_protected,
        )
        for c in contenders
    ]


def _improvement(gain: float | None, middle: float | None) -> float:
    """Against the middle; nothing known counts as the middle, nothing to be expected as far below it."""
    if gain is None or middle is None:
        return 0.0
    if gain <= 0:
        return -MAX_IMPROVEMENT
    return MAX_IMPROVEMENT * max(-1.0, min(1.0, math.log(gain / middle, FULL_IMPROVEMENT)))


def _slack(c: Contender) -> float:
    """Nothing for a deadline that no number of machines makes: it would only hold up the others."""
    if c.time_left_s is None or c.time_needed_s is None or not 0 < c.time_needed_s <= c.time_left_s:
        return 0.0
    return MAX_SLACK * max(0.0, 1.0 - (1.0 - c.time_needed_s / c.time_left_s) / FREE_SLACK)
