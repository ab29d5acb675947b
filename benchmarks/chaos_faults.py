"""What may go wrong in a trial: processes killed or frozen, a provider that errs, messages twice and late, machines taken."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

KILLED = {
    "web": "webapp.serve", "control": "-Q control", "urgent": "-Q urgent", "clock": "-Q clock", "beat": " beat ",
    "dramatiq": "dramatiq", "market": "simcloud", "valkey": "valkey-server",
}  # fmt: skip
FREEZE_S = 5.0  # longer than a lease: whoever wakes up finds its command taken over, and its clock jumped


class Faults:
    """Faults on an installation whose supervisor is `supervisor`; `provider` is a `SimClient`."""

    def __init__(self, supervisor: psutil.Process, provider: Any) -> None:
        self.supervisor, self.provider = supervisor, provider
        self.done: Counter[str] = Counter()

    def draw(self, rng: random.Random) -> tuple[str, Callable[[Any], None]]:
        """A fault and what carries it out on a job."""
        kinds: dict[str, tuple[int, Callable[[Any], None]]] = {
            **{f"kill {name}": (1, lambda job, words=words: self.kill(words)) for name, words in KILLED.items()},
            "freeze a worker": (2, lambda job: self.freeze(rng.choice(["-Q control", "-Q urgent", "-Q clock"]))),
            "answer lost": (2, lambda job: self.provider.fault("drop_create", 1)),
            "end refused": (2, lambda job: self.provider.fault("refuse_delete", rng.randint(1, 4))),
            "list late": (1, lambda job: self._late(rng.uniform(1, 4))),
            "provider slow": (1, lambda job: self.provider.fault("slow", 3, 1.5)),
            "provider errs": (2, lambda job: self.provider.fault("error", rng.randint(1, 6))),
            "none to be had": (2, lambda job: self.provider.fault("capacity", rng.randint(1, 4))),
            "machine under notice": (4, lambda job: self._machine(job, rng, self.provider.interrupt)),
            "machine killed": (3, lambda job: self._machine(job, rng, self.provider.kill)),
            "messages twice": (2, self._twice),
        }
        name = rng.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        return name, kinds[name][1]

    def strike(self, name: str, action: Callable[[Any], None], job: Any) -> None:
        """Carry a fault out; a provider that is away cannot be told to err."""
        from trainer_client.backends import BackendError

        try:
            action(job)
            self.done[name] += 1
        except (BackendError, psutil.Error):
            self.done[f"{name} (missed)"] += 1

    def processes(self, words: str) -> list[psutil.Process]:
        found = []
        for process in self.supervisor.children(recursive=True):
            try:
                if words in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return sorted(found, key=lambda process: process.create_time())

    def kill(self, words: str) -> None:
        for process in self.processes(words)[:1]:
            process.kill()

    def freeze(self, words: str) -> None:
        stopped = self.processes(words)
        for process in stopped:
            process.suspend()
        threading.Timer(FREEZE_S, self._thaw, [stopped]).start()

    def _thaw(self, stopped: list[psutil.Process]) -> None:
        for process in stopped:
            try:
                process.resume()
            except psutil.Error:
                continue

    def _late(self, seconds: float) -> None:
        self.provider.fault("late", 1, seconds)
        threading.Timer(3 * seconds, self._punctual).start()

    def _punctual(self) -> None:
        from trainer_client.backends import BackendError

        try:
            self.provider.fault("late", 0)
        except BackendError:
            return  # it was started again, and has forgotten

    def _machine(self, job: Any, rng: random.Random, action: Callable[[str], Any]) -> None:
        machines = list(job.instances.filter(status="running", notice_at=None))
        if machines:
            action(rng.choice(machines).claim)

    def _twice(self, job: Any) -> None:
        """Every message of the job once more, those of long ago as well."""
        from workers.doorbell import ring

        for command in job.commands.order_by("-id")[:10]:
            ring(command_id=command.pk, queue=command.queue)


def second_beat(env: dict[str, str], repo: Path) -> subprocess.Popen[bytes]:
    """Another clock, for the whole run."""
    argv = [sys.executable, "-m", "celery", "-A", "workers.celery_app", "beat", "--scheduler", "celery.beat.Scheduler"]
    return subprocess.Popen(
        [*argv, "--pidfile", ""], cwd=repo, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
