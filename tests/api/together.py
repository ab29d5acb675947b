"""Do things at the same moment, each in a thread with a database connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.db import connections

T = TypeVar("T")


def together(calls: list[Callable[[], T]]) -> list[T]:
    """The results of `calls`, all started at one barrier; the first exception is raised."""
    gate = threading.Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        try:
            gate.wait(timeout=30)
            return call()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result(timeout=60) for future in [pool.submit(run, call) for call in calls]]
