"""Commits of reports leave SQLite's checkpoints to a thread of their own."""

from __future__ import annotations

import pytest
from django.db import connection

from jobs.models import Team
from webapp.api.checkpoints import BACKSTOP_PAGES, checkpoint, leave_to_checkpointer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="only SQLite has a log to copy"),
]


def _asked(pragma: str) -> tuple[int, ...]:
    with connection.cursor() as cursor:
        cursor.execute(f"PRAGMA {pragma}")
        return tuple(cursor.fetchone())


def test_a_checkpoint_copies_every_page_of_the_log_into_the_database() -> None:
    Team.objects.create(name="one", slug="one")
    checkpoint()
    _, in_log, copied = _asked("wal_checkpoint(PASSIVE)")
    assert in_log == copied > 0


def test_the_writers_commits_checkpoint_only_at_the_backstop() -> None:
    leave_to_checkpointer()
    try:
        assert _asked("wal_autocheckpoint") == (BACKSTOP_PAGES,)
    finally:
        connection.close()  # the setting belongs to the connection
