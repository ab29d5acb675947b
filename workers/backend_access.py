"""The backends as workers see them: found by a job's name for one, made once per process."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings

from trainer_client.backends import Backend, get_backend
from workers.machine_access import machines_root


@cache
def backend_named(name: str) -> Backend:
    """The backend called `name`. Raises `BackendError` naming the known ones, or what is not set up."""
    return get_backend(name, **_options(name))


def _options(name: str) -> dict[str, Any]:
    """What a backend cannot read from its own variables."""
    if name == "local":
        return {"root": Path(settings.VAR_DIR) / "local"}
    if name in ("aws", "skypilot"):
        return {"root": machines_root()}
    if name == "kubernetes":
        from trainer_client.backends.kubernetes_place import place_from

        return {"place": place_from({**os.environ, "COUNTERFLOW_VAR_DIR": str(settings.VAR_DIR)})}
    return {}
