"""The backends as workers see them: found by a job's name for one, made once per process."""

from __future__ import annotations

from functools import cache

from trainer_client.backends import Backend, get_backend


@cache
def backend_named(name: str) -> Backend:
    """The backend called `name`. Raises `ValueError` (from `get_backend`) for one that does not exist."""
    return get_backend(name)
