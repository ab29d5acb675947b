"""Rows as text that a person reads, on a terminal or in a pipe."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import Any


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Left-aligned columns with a line of titles; `-` for what is not there."""
    texts = [[_text(cell) for cell in row] for row in rows]
    lines = [list(head), *texts]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def _text(cell: Any) -> str:
    return "-" if cell is None or cell == "" else str(cell).replace("\n", " ")


def plain(text: str) -> str:
    """Names and reasons are other people's: what would steer the terminal is shown as a blank."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text)


def when(instant: str | None) -> str | None:
    """An instant of the API in local time, to the minute."""
    if not instant:
        return None
    return f"{dt.datetime.fromisoformat(instant).astimezone():%Y-%m-%d %H:%M}"


def span(seconds: float | None) -> str | None:
    """`95` -> `1 min 35 s`."""
    if seconds is None:
        return None
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def share(fraction: float | None) -> str | None:
    return None if fraction is None else f"{100 * fraction:.0f} %"
