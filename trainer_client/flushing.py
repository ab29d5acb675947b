"""Files on their way to the disk, several at a time and behind the back of who writes them."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from io import FileIO
from pathlib import Path
from typing import Self

NUM_AT_ONCE = 8


class Flush:
    """What was handed over is durable when `wait` has returned. No thread and no open file outlives the `with` block.

    Waiting for one file after the other costs a turn of the disk's journal for each; together they share one.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(NUM_AT_ONCE, thread_name_prefix="flush")
        self._under_way: list[Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown()

    def start(self, file: FileIO) -> Future[None]:
        """Begin with what `file` holds so far; it may be written on meanwhile, and must be `take`n at the end."""
        return self._hand_over(self._pool.submit(os.fsync, file.fileno()))

    def take(self, file: FileIO, after: Future[None]) -> None:
        """A file that nobody writes to any more; it is closed here, and not before: only so is no error of the disk lost.

        `after`: what was begun with it; closed under that, the number of the file would be nobody's, or another's.
        """
        self._hand_over(self._pool.submit(_flush_and_close, file, after))

    def path(self, path: Path) -> None:
        """A file that has been closed, or a folder with the names that are in it now."""
        self._hand_over(self._pool.submit(_flush_path, path))

    def wait(self) -> None:
        """Raises the first error, when nothing is under way any more."""
        done, self._under_way = self._under_way, []
        errors = [error for future in done if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _hand_over(self, future: Future[None]) -> Future[None]:
        self._under_way.append(future)
        return future


def _flush_and_close(file: FileIO, after: Future[None]) -> None:
    wait_for([after])
    with file:
        os.fsync(file.fileno())


def _flush_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
