"""Real processes are ended after each test, whatever the test did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trainer_client.backends import BackendError
from workers import launch_specs
from workers.backend_access import backend_named


@pytest.fixture(autouse=True)
def own_var_dir(settings: Any, tmp_path: Path) -> Iterator[Path]:
    """Files of a test lie in its own folder; runs that still live afterwards are killed."""
    settings.VAR_DIR = tmp_path
    backend_named.cache_clear()
    yield tmp_path
    if (tmp_path / "local").is_dir():
        backend = backend_named("local")
        for handle in backend.list(""):
            try:
                backend.stop(handle, 0.0)
            except BackendError:
                continue
    backend_named.cache_clear()


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """`runs(command)`: what each rank of a launched attempt executes instead of a training."""

    def use(command: list[str]) -> None:
        monkeypatch.setattr(launch_specs, "launch_command", lambda attempt: command)

    return use
