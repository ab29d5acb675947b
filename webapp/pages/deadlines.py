"""Deadlines on one axis: where each job is expected to end, against its deadline."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from jobs.selectors.jobs import JobLine
from webapp.formats import span

NUM_ROWS = 8


@dataclass(frozen=True)
class DeadlineRow:
    """Places on the axis in percent; None where the job has shown no pace yet."""

    line: JobLine
    late: bool
    at: float | None
    low: float | None
    high: float | None
    word: str


@dataclass(frozen=True)
class Deadlines:
    """Rows, riskiest first, on an axis from `early` before the deadline (0 %) to `late` after it (100 %)."""

    rows: list[DeadlineRow]
    early: str
    late: str
    deadline_at: float
    num_late: int
    num_all: int


def deadline_rows(lines: Iterable[JobLine], now: dt.datetime) -> Deadlines | None:
    """The jobs with a deadline and a pace, or None if there is none with a deadline."""
    dated = [line for line in lines if line.job.deadline is not None]
    if not dated:
        return None
    margins = {line.job.pk: _margins(line) for line in dated}
    ends = [m for ms in margins.values() for m in ms if m is not None]
    early_s, late_s = max([3600.0, *ends]), max([1800.0, *(-m for m in ends)])
    place = lambda m: None if m is None else round(100 * (early_s - m) / (early_s + late_s), 2)  # noqa: E731
    rows = []
    for line in dated:
        at, low, high = margins[line.job.pk]
        passed = line.job.deadline is not None and line.job.deadline < now
        late = passed or (at is not None and at < 0)
        rows.append(DeadlineRow(line, late, place(at), place(low), place(high), _word(at, passed)))
    rows.sort(key=lambda row: (not row.late, margins[row.line.job.pk][0] is None, margins[row.line.job.pk][0] or 0.0))
    num_late = sum(row.late for row in rows)
    return Deadlines(
        rows[:NUM_ROWS], span(early_s), span(late_s), 100 * early_s / (early_s + late_s), num_late, len(rows)
    )


def _margins(line: JobLine) -> tuple[float | None, float | None, float | None]:
    """Seconds to the deadline of the expected, the early and the late finish."""
    progress, deadline = line.progress, line.job.deadline
    if deadline is None or progress.finish_at is None or progress.finish_low is None or progress.finish_high is None:
        return None, None, None
    return tuple(
        (deadline - at).total_seconds() for at in (progress.finish_at, progress.finish_low, progress.finish_high)
    )  # type: ignore[return-value]


def _word(margin_s: float | None, passed: bool) -> str:
    if passed:
        return "passed"
    if margin_s is None:
        return "no pace yet"
    return f"{span(int(abs(margin_s)))} {'late' if margin_s < 0 else 'early'}"
