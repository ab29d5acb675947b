"""One kept process: started in a session of its own, brought back with growing pauses, stopped with its descendants."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from webapp.supervisor.programs import Program

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
STABLE_AFTER_S = 30.0


class Child:
    """A `Program` and the process that currently runs it."""

    def __init__(self, program: Program, *, log: Path, env: dict[str, str], cwd: Path) -> None:
        self.program = program
        self.log = log
        self.env = {**env, **program.env}
        self.cwd = cwd
        self.process: subprocess.Popen[bytes] | None = None
        self.started_at = 0.0
        self.start_again_at = 0.0
        self.pause_s = FIRST_PAUSE_S

    @property
    def name(self) -> str:
        return self.program.name

    def age_s(self) -> float:
        return time.monotonic() - self.started_at

    def start(self) -> None:
        """Start the program. Its own session keeps a Ctrl-C in the terminal away from it: the supervisor stops it."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self.program.argv,
                env=self.env,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started_at = time.monotonic()

    def ended(self) -> int | None:
        """Exit status if the process is over (negative: the signal), None while it runs."""
        return None if self.process is None else self.process.poll()

    def plan_restart(self) -> float:
        """After an end: clear what the dead process left and say in how many seconds it starts again."""
        self.signal(signal.SIGKILL)  # pool processes of a killed leader
        self.process = None
        if self.age_s() > STABLE_AFTER_S:
            self.pause_s = FIRST_PAUSE_S
        pause_s = self.pause_s
        self.pause_s = min(self.pause_s * 2, LONGEST_PAUSE_S)
        self.start_again_at = time.monotonic() + pause_s
        return pause_s

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole process group; one that is gone already is no error."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, number)

    def ask_to_stop(self) -> None:
        """SIGTERM to the leader alone: it ends its own helpers in the right order."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
