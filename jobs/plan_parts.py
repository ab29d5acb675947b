"""Work on many jobs of which one may fail: its error is noted, and the others go on without it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from django.db import InterfaceError, OperationalError

logger = logging.getLogger(__name__)

T = TypeVar("T")
Failed = dict[int, Exception]  # job id -> why it could not be planned
NO_JOBS_FAULT = (OperationalError, InterfaceError)  # the database is away or busy: nobody's plan is at fault
MAX_TRIES = 32  # halvings of one piece of work; two for each doubling of the jobs find the one that fails


def each(work: Callable[[int], T], ids: Iterable[int], failed: Failed) -> dict[int, T]:
    """Job id -> what `work` makes of it, without those for which it fails."""
    found = {}
    for pk in ids:
        try:
            found[pk] = work(pk)
        except NO_JOBS_FAULT:
            raise
        except Exception as error:
            logger.exception("job %s could not be planned", pk)
            failed[pk] = error
    return found


def together(work: Callable[[Sequence[int]], list[T]], ids: Sequence[int], failed: Failed) -> list[T]:
    """What `work` makes of the jobs together; where that fails, of each half, until the one that fails is alone.

    Where everything fails the halving stops after `MAX_TRIES`: the jobs that are left fail with it, and are tried later.
    """
    return _together(work, ids, failed, iter(range(MAX_TRIES)))


def _together(
    work: Callable[[Sequence[int]], list[T]], ids: Sequence[int], failed: Failed, tries: Iterator[int]
) -> list[T]:
    left = [pk for pk in ids if pk not in failed]
    if not left:
        return []
    try:
        return work(left)
    except NO_JOBS_FAULT:
        raise
    except Exception as error:
        alone = len(left) == 1 or next(tries, None) is None
        names = ", ".join(map(str, left[:10])) + (" …" if len(left) > 10 else "")
        logger.exception("%d jobs (%s) could not be planned%s", len(left), names, "" if alone else " together")
        if alone:
            failed.update(dict.fromkeys(left, error))
            return []
    half = len(left) // 2
    return _together(work, left[:half], failed, tries) + _together(work, left[half:], failed, tries)
