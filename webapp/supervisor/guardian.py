"""A second process that outlives the supervisor by one duty: if the supervisor is killed, stop what it had started.

It waits at a pipe whose other end only the supervisor holds. The end of the pipe without a farewell means: killed.
This works on every Unix, also where the kernel cannot signal a parent's death.
"""

import contextlib
import os
import signal

from webapp.supervisor.strays import kill_marked, stop_marked

FAREWELL = b"bye"
GRACE_S = 5.0


class Guardian:
    """The supervisor's handle on its guardian process."""

    def __init__(self, mark: str) -> None:
        self.mark = mark
        self.pid = 0
        self.write_end = -1

    def start(self) -> None:
        """Fork the guardian. The caller must have no other threads."""
        read_end, self.write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.write_end)
            _guard(read_end, self.mark)
        os.close(read_end)

    def keep_alive(self) -> bool:
        """Start it anew if it died; returns whether that was needed."""
        ended, _ = os.waitpid(self.pid, os.WNOHANG)
        if ended == 0:
            return False
        os.close(self.write_end)
        self.start()
        return True

    def dismiss(self) -> None:
        """Say that everything was stopped in order."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.write_end, FAREWELL)
        os.close(self.write_end)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _guard(read_end: int, mark: str) -> None:
    """Body of the guardian process; never returns."""
    status = 1
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        silence = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(silence, descriptor)
        if os.read(read_end, len(FAREWELL)) != FAREWELL:
            stop_marked(mark, grace_s=GRACE_S)
            kill_marked(mark)
        status = 0
    finally:
        os._exit(status)  # not sys.exit: this is a copy of the supervisor, whose clean-up is not ours to run
