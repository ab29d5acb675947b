"""SQLite's checkpoints beside the commits instead of inside them.

In WAL mode the commit that fills the log's thousandth page copies the log into the database file and waits for the disk. With
reports that is about every twentieth commit, and so the slowest answers. Here a thread of its own does it once a second while
reports come; a passive checkpoint keeps no writer waiting.
"""

from __future__ import annotations

import logging
import threading
import time

from django.db import DatabaseError, connection

logger = logging.getLogger(__name__)

EVERY_S = 1.0
BACKSTOP_PAGES = 16_000  # 64 MiB; then the commit does it after all: cheap, since most has been copied by then


def leave_to_checkpointer() -> None:
    """For the writer's connection: commits do not checkpoint, short of the backstop."""
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA wal_autocheckpoint={BACKSTOP_PAGES}")


class Checkpointer:
    """The thread; `written()` after each commit."""

    def __init__(self) -> None:
        self._written = threading.Event()
        threading.Thread(target=self._run, name="checkpointer", daemon=True).start()

    def written(self) -> None:
        self._written.set()

    def _run(self) -> None:
        while True:
            if not self._written.wait(EVERY_S):
                connection.close()
                self._written.wait()
            self._written.clear()
            checkpoint()
            time.sleep(EVERY_S)


def checkpoint() -> None:
    """Copy what can be copied of the log into the database, without waiting for readers or writers."""
    try:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA wal_checkpoint(PASSIVE)")
            cursor.fetchall()
    except DatabaseError as error:  # the next one tries again, and the backstop is there
        logger.warning("the write-ahead log could not be copied into the database: %s", error)
        connection.close()
