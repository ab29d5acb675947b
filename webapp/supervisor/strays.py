"""Processes that belong to an installation, found by a mark in their environment.

A mark finds what process groups miss: trainers that a worker started in sessions of their own, and what an earlier
supervisor left when it was killed.
"""

import os
import time

import psutil

MARK = "COUNTERFLOW_SUPERVISED"


def marked_processes(mark: str) -> list[psutil.Process]:
    """Living processes, other than this one, whose environment carries `mark`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        except (psutil.Error, OSError):  # gone meanwhile, or another user's
            continue
    return found


def stop_marked(mark: str, *, grace_s: float, keep: frozenset[int] = frozenset()) -> int:
    """SIGTERM to the marked processes (except pids in `keep`), SIGKILL after `grace_s`. Returns how many there were."""
    processes = [process for process in marked_processes(mark) if process.pid not in keep]
    for process in processes:
        _quietly(process.terminate)
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        _quietly(process.kill)
    psutil.wait_procs(alive, timeout=3)
    return len(processes)


def kill_marked(mark: str) -> None:
    """SIGKILL until none is left (a process may start another while it is being looked for)."""
    for _ in range(20):
        processes = marked_processes(mark)
        if not processes:
            return
        for process in processes:
            _quietly(process.kill)
        time.sleep(0.05)


def _quietly(action: object) -> None:
    try:
        action()  # type: ignore[operator]
    except psutil.Error:
        pass
