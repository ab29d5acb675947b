"""What a trainer does beside steps, said with its reports: a run without a new step is hung, unless it says this."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainer_client.reporter import Reporter


@contextmanager
def busy(reporter: Reporter | None, doing: str) -> Iterator[None]:
    """Meanwhile no step is to be expected; `doing` in a word."""
    if reporter is None:
        yield
        return
    before, reporter.busy = reporter.busy, doing
    try:
        yield
    finally:
        reporter.busy = before
