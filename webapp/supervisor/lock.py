"""One supervisor per installation: a lock on a file under `var/` that also says who holds it."""

import fcntl
import os
import time
from pathlib import Path
from typing import IO

import psutil


class AlreadyRunning(Exception):
    """Another supervisor holds the lock; `pid` may be 0 if it could not be read."""

    def __init__(self, pid: int, address: str) -> None:
        super().__init__(f"Counterflow already runs here (pid {pid}, {address}). Stop it with `make down`.")
        self.pid = pid


def lock_file(var_dir: Path) -> Path:
    return var_dir / "supervisor.lock"


def take_lock(var_dir: Path, *, address: str, wait_s: float = 15.0) -> IO[str]:
    """Take the lock and write pid and address into it; the returned file must stay open.

    If the holder is dead its guardian still holds the lock while it stops the rest: wait for that, but not for a
    living supervisor. Raises AlreadyRunning.
    """
    file = lock_file(var_dir).open("a+")
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            pid, other_address = read_lock(var_dir)
            if psutil.pid_exists(pid) or time.monotonic() > deadline:
                file.close()
                raise AlreadyRunning(pid, other_address) from None
            time.sleep(0.2)
    file.truncate(0)
    file.write(f"{os.getpid()} {address}\n")
    file.flush()
    return file


def is_locked(var_dir: Path) -> bool:
    """Whether a supervisor runs here, or a guardian still cleans up after one."""
    try:
        with lock_file(var_dir).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def read_lock(var_dir: Path) -> tuple[int, str]:
    """Pid and address of the last holder, (0, "") if there was none."""
    try:
        words = lock_file(var_dir).read_text().split()
    except FileNotFoundError:
        return 0, ""
    return (int(words[0]), words[1]) if len(words) == 2 else (0, "")
