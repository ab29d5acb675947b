"""The backends as workers see them: found by a job's name for one, made once per process."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from django.conf import settings

from trainer_client.backends import Backend, get_backend


@cache
def backend_named(name: str) -> Backend:
    """The backend called `name`. Raises `BackendError` naming the known ones."""
    options = {"root": Path(settings.VAR_DIR) / "local"} if name == "local" else {}
    return get_backend(name, **options)
