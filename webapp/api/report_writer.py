"""One thread per process that stores reports: all that arrived while the last commit ran go into the next one.

A commit costs more than a report, so under load many share one. Each is answered after the commit that holds it.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

from django.db import DatabaseError, Error, connection
from django.utils import timezone

from jobs.errors import DomainError
from jobs.services.reports import Incoming, Stored, reports_store
from webapp.api.checkpoints import Checkpointer, leave_to_checkpointer

logger = logging.getLogger(__name__)

MOST_WAITING = 256  # reports; beyond it the answer is 503 and the trainer keeps its batch
MOST_POINTS = 400_000  # in one transaction, so that nobody waits long for a stranger's batch
IDLE_S = 5.0  # then the connection is given back

Outcome = Stored | DomainError | Exception


@dataclass(frozen=True)
class Order:
    """A report and whom to tell; `done` is called from the writer's thread, once for all reports of a commit."""

    report: Incoming
    done: Callable[[Outcome], None]


class ReportWriter:
    """The thread and its queue."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[Order] = queue.Queue(MOST_WAITING)
        self.checkpointer = Checkpointer() if connection.vendor == "sqlite" else None
        threading.Thread(target=self._run, name="report-writer", daemon=True).start()

    def offer(self, order: Order) -> bool:
        """False if too many wait already."""
        try:
            self.waiting.put_nowait(order)
        except queue.Full:
            return False
        return True

    def _run(self) -> None:
        while True:
            try:
                first = self.waiting.get(timeout=IDLE_S)
            except queue.Empty:
                connection.close()
                continue
            orders = self._group(first)
            for order, outcome in zip(orders, self._store(orders), strict=True):
                order.done(outcome)
            if self.checkpointer is not None:
                self.checkpointer.written()

    def _group(self, first: Order) -> list[Order]:
        """`first` and what else waits, up to a size."""
        orders, points = [first], first.report.batch.num_points
        while points < MOST_POINTS:
            try:
                order = self.waiting.get_nowait()
            except queue.Empty:
                break
            orders.append(order)
            points += order.report.batch.num_points
        return orders

    def _store(self, orders: list[Order]) -> list[Outcome]:
        """Together; if that fails, one by one, so that one bad report does not take the others down."""
        try:
            _open_durably()
            return list(reports_store(reports=[o.report for o in orders], now=timezone.now()))
        except Exception as error:
            connection.close() if isinstance(error, Error) else None
            if len(orders) == 1:
                if not isinstance(error, DatabaseError):
                    logger.exception("a report could not be stored")
                return [error]
        return [outcome for order in orders for outcome in self._store([order])]


def _open_durably() -> None:
    """On SQLite, let a commit of this thread reach the disk before it returns: what was answered survives a power cut.

    The other connections stay at `synchronous=NORMAL`, where only a crash of the machine can take the last commits.
    """
    if connection.connection is None and connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA synchronous=FULL")
        leave_to_checkpointer()


_writer: ReportWriter | None = None
_lock = threading.Lock()


def writer() -> ReportWriter:
    """The writer of this process, started at its first report."""
    global _writer
    with _lock:
        if _writer is None:
            _writer = ReportWriter()
        return _writer
