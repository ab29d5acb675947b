"""What may go wrong in a trial: processes killed or frozen, database and broker too, a clock that jumps, a provider that errs,
messages twice and late, machines taken."""

from __future__ import annotations

import mmap
import random
import shutil
import signal
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from chaos_services import Services

KILLED = {
    "web": "webapp.serve", "control": "-Q control", "urgent": "-Q urgent", "clock": "-Q clock", "beat": " beat ",
    "dramatiq": "dramatiq", "market": "simcloud", "valkey": "valkey-server",
}  # fmt: skip
FREEZE_S = 5.0  # longer than a lease: whoever wakes up finds its command taken over
JUMPS_S = (-40, -8, 15, 120)
JUMP_LASTS_S = 4.0


class Faults:
    """Faults on an installation whose supervisor is `supervisor`; `provider` is a `SimClient`."""

    def __init__(
        self, supervisor: psutil.Process, provider: Any, services: Services | None = None, clock: Clock | None = None
    ) -> None:
        self.supervisor, self.provider, self.services, self.clock = supervisor, provider, services, clock
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
        if self.services is not None:
            services = self.services
            kinds["kill postgres"] = (2, lambda job: services.strike("postgres", kill=True))
            kinds["restart postgres"] = (2, lambda job: services.strike("postgres", kill=False))
            kinds["kill redis"] = (2, lambda job: services.strike("redis", kill=True))
        if self.clock is not None:
            clock, by_s = self.clock, rng.choice(JUMPS_S)
            kinds["clock jumps"] = (3, lambda job: clock.jump(by_s))
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


class Clock:
    """Wall clock of all processes that inherit `environment`, but the provider; durations are left alone (`chaos_clock.c`)."""

    def __init__(self, folder: Path, compiler: str) -> None:
        self.library, file = folder / "clock.so", folder / "clock"
        file.write_bytes(struct.pack("=q", 0))
        self.environment = {"LD_PRELOAD": str(self.library), "COUNTERFLOW_CHAOS_CLOCK": str(file)}
        source = Path(__file__).with_name("chaos_clock.c")
        subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", self.library, source, "-ldl"], check=True)
        with file.open("r+b") as opened:
            self.offset = mmap.mmap(opened.fileno(), 8)

    def jump(self, by_s: int) -> None:
        """Away, and back after a few seconds: a jump in either direction."""
        self._set(by_s)
        threading.Timer(JUMP_LASTS_S, self._set, [0]).start()

    def _set(self, by_s: int) -> None:
        self.offset[:8] = struct.pack("=q", by_s)


def clock_in(folder: Path) -> Clock | None:
    """None where there is no C compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    return Clock(folder, compiler) if compiler else None


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
