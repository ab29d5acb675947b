"""Faults that a provider may have, to be had on order."""

from __future__ import annotations

import threading
import time
from typing import Any


class Dropped(Exception):
    """The work is done, and the answer gets lost."""


class Faults:
    """`set("drop_create", 2)`: the next two creates succeed and say nothing.

    Kinds: drop_create; refuse_delete; capacity (creates find none); error (any request fails); slow (each takes `seconds`);
    late (machines are missing from lists for `seconds` after their creation).
    """

    KINDS = ("drop_create", "refuse_delete", "capacity", "error", "slow", "late")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def set(self, kind: str, num: int, seconds: float = 0.0) -> None:
        """The next `num` occasions; 0 ends it. ValueError for an unknown kind."""
        if kind not in self.KINDS:
            raise ValueError(f"fault {kind!r} is unknown; known: {', '.join(self.KINDS)}")
        with self._lock:
            self._left[kind], self._seconds[kind] = num, seconds

    def strikes(self, kind: str) -> bool:
        """Whether it happens now; each occasion is used up."""
        with self._lock:
            left = self._left.get(kind, 0)
            self._left[kind] = max(0, left - 1)
            return left > 0

    def delay(self) -> None:
        if self.strikes("slow"):
            time.sleep(self._seconds.get("slow", 1.0))

    def hides(self, record: dict[str, Any], now_s: float) -> bool:
        """Whether a list leaves the machine out."""
        with self._lock:
            late_s = self._seconds.get("late", 0.0) if self._left.get("late", 0) else 0.0
        return now_s - float(record["created_at"]) < late_s
