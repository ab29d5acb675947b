"""Which attempt's numbers stand for which steps.

An attempt that starts below its forerunner's last step makes the later steps of the forerunner a lost branch: stored, readable
by naming the attempt, and not part of the surviving branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from jobs.models import Attempt, Job
from jobs.planes import FACTOR, LEVELS, levels_of


@dataclass(frozen=True)
class Segment:
    """Steps [`start`, `stop`) as attempt `attempt_id` did them."""

    attempt_id: int
    start: int
    stop: int
    top: int = LEVELS[-1]  # the coarsest level that the attempt keeps


@dataclass(frozen=True)
class Piece:
    """Rollup rows `first` <= bin < `last` of one level of one attempt."""

    attempt_id: int
    level: int
    first: int
    last: int


def segments_surviving(job: Job) -> list[Segment]:
    """The surviving branch, by rising steps. An attempt counts from the moment it runs or has reported."""
    columns = ("start_step", "last_step", "running_at", "planned_steps")
    return segments_kept(Attempt.objects.filter(job=job).order_by("fence").only(*columns))


def segments_kept(attempts: Iterable[Attempt]) -> list[Segment]:
    """The same from the attempts of one job, by rising fence."""
    segments: list[Segment] = []
    for attempt in attempts:
        start, last = attempt.start_step, attempt.last_step
        if attempt.running_at is None and last < 0:
            continue
        segments = [replace(s, stop=min(s.stop, start)) for s in segments if s.start < start]
        if last >= start:
            segments.append(Segment(attempt.pk, start, last + 1, levels_of(attempt.planned_steps)[-1]))
    return segments


def segments_of(attempt: Attempt) -> list[Segment]:
    """Everything one attempt reported, whether it survived or not."""
    top = levels_of(attempt.planned_steps)[-1]
    return [Segment(attempt.pk, 0, attempt.last_step + 1, top)] if attempt.last_step >= 0 else []


def pieces(segments: list[Segment], *, start: int, stop: int, level: int) -> Iterator[Piece]:
    """Rows that hold exactly the steps [`start`, `stop`) of the segments, none coarser than `level`.

    A bin that a branch ends in holds lost steps too; its surviving part is put together from finer levels.
    """
    for segment in segments:
        low, high = max(segment.start, start), min(segment.stop, stop)
        if low < high:
            yield from _cover(segment.attempt_id, low, high, min(level, segment.top))


def _cover(attempt_id: int, low: int, high: int, level: int) -> Iterator[Piece]:
    width = FACTOR**level
    first, last = -(-low // width), high // width
    if level == LEVELS[0]:
        yield Piece(attempt_id, level, low, high)
    elif first >= last:
        yield from _cover(attempt_id, low, high, level - 1)
    else:
        yield from _cover(attempt_id, low, first * width, level - 1) if low < first * width else ()
        yield Piece(attempt_id, level, first, last)
        yield from _cover(attempt_id, last * width, high, level - 1) if last * width < high else ()
