"""Only the newest attempt of a job writes its snapshots.

Attempts carry a rising number. The first act of an attempt is to write its own into `fence.json` beside the snapshots; whoever
finds a higher one there, at the start or later, may write and delete nothing more. The comparison and what it permits happen
under one file lock, so that an attempt that was thought dead cannot slip in between. Where snapshots lie at an address, the
number lies there too (`addressfence`), so that machines which share no folder are kept apart.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer_client.journal import write_durably

FENCE, LOCK = "fence.json", ".fence.lock"


class StaleAttempt(RuntimeError):
    """A newer attempt of the job has taken over its snapshots."""


class Fence:
    """The right of one attempt to write below `root`. `number` 0: one more than the number found there."""

    def __init__(self, root: Path, number: int = 0, attempt: str = "") -> None:
        self._root, self.number, self._attempt = root, number, attempt
        self._what = str(root)  # that is taken over, in words

    def claim(self) -> None:
        """Take over from older attempts; `StaleAttempt` where a newer one is there."""
        self._root.mkdir(parents=True, exist_ok=True)
        with self._locked():
            newest, attempt = self._read()
            if self.number == 0:
                self.number = newest if self._attempt and attempt == self._attempt else newest + 1
            self._compare(newest)
            self._write(json.dumps({"number": self.number, "attempt": self._attempt}).encode())

    @contextmanager
    def held(self) -> Iterator[None]:
        """For a rename or a deletion: no newer attempt can begin meanwhile. `StaleAttempt` where one has."""
        with self._locked():
            self._compare(self._read()[0])
            yield

    def _compare(self, newest: int) -> None:
        if newest > self.number:
            raise StaleAttempt(
                f"attempt number {newest} has taken over {self._what}; this is number {self.number} and must stop"
            )

    def _read(self) -> tuple[int, str]:
        """Number and attempt of who was the last to take over; 0 for nobody."""
        return claim_read((self._root / FENCE).read_bytes)

    def _write(self, claim: bytes) -> None:
        write_durably(self._root / FENCE, claim)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._root / LOCK, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # given up when the file is closed, also by the death of the process
            yield


def claim_read(read: Callable[[], bytes]) -> tuple[int, str]:
    """The number and the attempt in the file that `read` gives; 0 where there is none."""
    try:
        found = json.loads(read())
    except FileNotFoundError:
        return 0, ""
    return int(found["number"]), str(found["attempt"])
