"""Processes known by pid *and* start time, so that a reused pid is never taken for ours."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

_PR_SET_PDEATHSIG = 1


def identity(pid: int) -> dict[str, Any]:
    """pid and start mark of a living process (mark None when it is already gone)."""
    return {"pid": pid, "started_at": _start_mark(pid)}


def find(known: dict[str, Any] | None) -> psutil.Process | None:
    """The process, if it still is the one that `identity` saw and not a zombie."""
    if not known or known.get("pid") is None or known.get("started_at") is None:
        return None
    if _start_mark(known["pid"]) != known["started_at"]:
        return None
    try:
        process = psutil.Process(known["pid"])
        return process if process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.NoSuchProcess:
        return None


def _start_mark(pid: int) -> float | None:
    """Start time: in clock ticks since boot where there is a /proc (a set clock does not move it), else in unix seconds."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        return float(stat.rpartition(")")[2].split()[19])
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return None
    except (ProcessLookupError, IndexError):
        return None
    try:
        return psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        return None


def alive(known: dict[str, Any] | None) -> bool:
    return find(known) is not None


def send(known: dict[str, Any] | None, signum: int) -> bool:
    """Signal the process if it is still ours."""
    process = find(known)
    if process is None:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signum)
        return True
    return False


def dies_with_parent() -> Callable[[], None] | None:
    """For `preexec_fn`: the kernel sends SIGTERM when the parent ends. None where the kernel cannot."""
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def bind() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGTERM)

    return bind
