"""What must hold before anything starts; each fault is one line that says what would help."""

import errno
import os
import shutil
import socket
import tempfile
from pathlib import Path

import psutil
from django.conf import settings

from webapp.redaction import redact_text
from webapp.supervisor.valkey import answers


class NotReady(Exception):
    """A reason not to start, in one line."""


def check_var_dir(var_dir: Path) -> None:
    """`var/` can be written and has room."""
    try:
        with tempfile.NamedTemporaryFile(dir=var_dir) as file:
            file.write(b"0" * 4096)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise NotReady(f"The disk of {var_dir} is full: free some space or set COUNTERFLOW_VAR_DIR.") from error
        raise NotReady(f"Cannot write in {var_dir} ({error.strerror}): set COUNTERFLOW_VAR_DIR.") from error
    free, wanted = shutil.disk_usage(var_dir).free, settings.DISK_FREE_MIN_BYTES
    if free < wanted:
        raise NotReady(
            f"Only {free / 2**20:.0f} MiB free where {var_dir} lies, {wanted / 2**20:.0f} MiB wanted: "
            "free some space or set COUNTERFLOW_VAR_DIR."
        )


def check_port(host: str, port: int) -> None:
    """The address of the web server is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise NotReady(
                    f"Port {port} on {host} is taken{_listener(port)}: stop it or choose another, "
                    f"as in `COUNTERFLOW_PORT={port + 1} make up`."
                ) from error
            raise NotReady(
                f"Cannot listen on {host}:{port}: {error.strerror}. Set COUNTERFLOW_HOST and _PORT."
            ) from error


def _listener(port: int) -> str:
    """` by NAME (pid N)` where the system tells it."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except (psutil.Error, OSError):
        pass
    return ""


def check_redis(redis_url: str) -> None:
    """A server that `REDIS_URL` names answers."""
    if not answers(redis_url):
        raise NotReady(f"REDIS_URL {redact_text(redis_url)} does not answer: start it, or unset REDIS_URL.")
