"""Micro-batches that are made before they are asked for, in threads of the rank.

Nothing of it is state of the run: what is made ahead is known by its samples, and taken only where exactly these are asked for.
So a change of the mixture, a resize or a SIGTERM meanwhile loses nothing and repeats nothing.

Legend: N samples of a micro-batch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from trainer_client.encoding import MicroBatch
    from trainer_client.sampleencoder import SampleEncoder

PER_WORKER = 2  # micro-batches that are ahead for each thread, at least: one is made while another lies ready


class Visit(NamedTuple):
    """One visit of one sample; `revision` counts how often the shard's samples were replaced."""

    shard: int
    revision: int
    sample: int
    epoch: int


class Wanted(NamedTuple):
    """A micro-batch of `visits` [N], by which it is known: equal ones are equal to the bit."""

    step: int
    place: int  # in the global batch
    visits: tuple[Visit, ...]


Make = Callable[[Wanted, "SampleEncoder"], "MicroBatch"]


class BatchesAhead:
    """`make(wanted, encoder)` in `num_workers` threads, each with an encoder of its own. Used by one thread."""

    def __init__(self, num_workers: int, make: Make, encoder: SampleEncoder) -> None:
        copies: SimpleQueue[SampleEncoder] = SimpleQueue()
        for _ in range(num_workers):
            copies.put(encoder.for_thread())
        self._own = threading.local()
        self._make = make
        self._expected: dict[Wanted, Future[MicroBatch]] = {}
        self._threads = ThreadPoolExecutor(
            num_workers, "counterflow-data", lambda: setattr(self._own, "encoder", copies.get())
        )

    def take(self, wanted: Wanted) -> MicroBatch | None:
        """What was made of it, waited for where it is under way; None where it was not expected, or something was wrong with it."""
        future = self._expected.pop(wanted, None)
        if future is None or future.exception() is not None:
            return None
        return future.result()

    def expect(self, wanted: Sequence[Wanted]) -> None:
        """These will be asked for next, in this order; what was expected beside them is dropped."""
        before, self._expected = self._expected, {}
        for item in wanted:
            known = before.pop(item, None)
            self._expected[item] = self._threads.submit(self._made, item) if known is None else known
        for future in before.values():
            future.cancel()

    def _made(self, wanted: Wanted) -> MicroBatch:
        return self._make(wanted, self._own.encoder)

    def close(self) -> None:
        """Drop what is not begun; what is under way ends by itself."""
        self._expected = {}
        self._threads.shutdown(wait=False, cancel_futures=True)
