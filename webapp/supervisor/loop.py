"""The supervisor itself: start in order, watch, bring back, stop in order."""

import json
import os
import signal
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from django.conf import settings

from webapp.supervisor.children import Child
from webapp.supervisor.guardian import Guardian
from webapp.supervisor.preflight import NotReady
from webapp.supervisor.programs import Program, programs, valkey_program
from webapp.supervisor.strays import MARK, kill_marked, stop_marked
from webapp.supervisor.valkey import answers, make_folders, socket_path

POLL_S = 0.1
HEALTH_EVERY_S = 15.0
LOG_MAX_BYTES = 20 * 2**20
STRAYS_GRACE_S = 10.0


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def last_words(child: Child, status: int) -> str:
    """The last line of a program's log, where it ended by a fault of its own."""
    if status <= 0:
        return ""
    with child.log.open("rb") as file:
        file.seek(max(0, child.log.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").strip().splitlines()
    return f" (more in {child.log}): {lines[-1]}" if lines else ""


def silent_children(children: list[Child], ages_s: dict[str, float | None]) -> list[Child]:
    """Programs without a heartbeat for longer than they may be busy; beat itself, if every queue is silent.

    `ages_s` is the age of each queue's last heartbeat, None if there was none. A program that is younger than its
    limit, or than beat's, had no chance yet.
    """
    beat = next((child for child in children if child.name == "beat"), None)
    if beat is None or not ages_s:
        return []
    workers = [child for child in children if child.program.queue in ages_s]

    def is_silent(child: Child) -> bool:
        age_s = ages_s[child.program.queue or ""]
        limit_s = child.program.silent_s
        return (age_s is None or age_s > limit_s) and min(child.age_s(), beat.age_s()) > limit_s

    silent = [child for child in workers if is_silent(child)]
    return [beat] if silent and len(silent) == len(workers) else silent


class Supervisor:
    """Keeps the programs of one installation alive until it is told to stop."""

    def __init__(self) -> None:
        self.mark = str(settings.VAR_DIR)
        self.log_dir: Path = settings.VAR_DIR / "log"
        self.log_dir.mkdir(exist_ok=True)
        self.children: list[Child] = []
        self.guardian = Guardian(self.mark)
        self.num_stop_requests = 0
        self.health_at = time.monotonic() + HEALTH_EVERY_S

    # Signals -------------------------------------------------------------------------------------------------------
    def install_signals(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, _frame: object) -> None:
        self.num_stop_requests += 1

    @property
    def stopping(self) -> bool:
        return self.num_stop_requests > 0

    # Start ---------------------------------------------------------------------------------------------------------
    def environment(self) -> dict[str, str]:
        """Environment of every child: ours, and the mark by which descendants are found."""
        return {**os.environ, MARK: self.mark, "PYTHONUNBUFFERED": "1", "DJANGO_SETTINGS_MODULE": "webapp.settings"}

    def add(self, program: Program) -> Child:
        child = Child(
            program,
            log=self.log_dir / f"{program.name}.log",
            env=self.environment(),
            cwd=settings.BASE_DIR,
        )
        self.rotate(child.log)
        child.start()
        self.children.append(child)
        return child

    def start_valkey(self) -> None:
        """Start the embedded server, if it is wanted, and wait until it has loaded its data."""
        try:
            program = valkey_program()
        except FileNotFoundError:
            raise NotReady(
                "No Valkey or Redis server runs on this machine: install one (valkey-server or redis-server on PATH), "
                "or name a running one in REDIS_URL."
            ) from None
        if program is None:
            return
        make_folders(socket=socket_path(settings.REDIS_URL), data_dir=settings.VAR_DIR / "valkey")
        child = self.add(program)
        deadline = time.monotonic() + 60
        while not answers(settings.REDIS_URL):
            if child.ended() is not None or time.monotonic() > deadline or self.stopping:
                raise NotReady(f"Valkey did not start; its last words are in {child.log}.")
            time.sleep(0.05)

    def start_programs(self) -> None:
        for program in programs():
            self.add(program)

    def wait_for_web(self, *, within_s: float = 90) -> bool:
        """Watch the children until the web server answers; False if asked to stop, or if it takes too long."""
        deadline = time.monotonic() + within_s
        while not self.stopping and time.monotonic() < deadline:
            self.watch()
            if self.get_json("/health/live") is not None:
                return True
            time.sleep(POLL_S)
        return False

    # Watch ---------------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Watch until a stop is asked for."""
        while not self.stopping:
            self.watch()
            if time.monotonic() > self.health_at:
                self.health_at = time.monotonic() + HEALTH_EVERY_S
                self.look_at_health()
            time.sleep(POLL_S)

    def watch(self) -> None:
        """Bring back what has ended."""
        for child in self.children:
            status = child.ended()
            if status is not None:
                pause_s = child.plan_restart()
                how = f"signal {-status}" if status < 0 else f"status {status}"
                say(f"{child.name} ended with {how}; starts again in {pause_s:g} s{last_words(child, status)}")
            elif child.process is None and time.monotonic() >= child.start_again_at:
                self.start_again(child)
        if self.guardian.keep_alive():
            say("the guardian process ended and was started again")

    def start_again(self, child: Child) -> None:
        """Start a child whose pause is over; a machine without room for a process gets another pause."""
        try:
            child.start()
        except OSError as error:
            pause_s = child.plan_restart()
            say(f"{child.name} could not be started ({error.strerror}); next try in {pause_s:g} s")

    def look_at_health(self) -> None:
        """Start a program again that is up but lets no heartbeat through, and keep logs from filling the disk."""
        for child in self.children:
            self.rotate(child.log)
        health = self.get_json("/health/ready") or {}
        ages_s = health.get("checks", {}).get("queues", {}).get("ages_s", {})
        for child in silent_children(self.children, ages_s):
            say(f"{child.name} is up but no heartbeat comes through; it is started again")
            child.signal(signal.SIGKILL)

    def rotate(self, log: Path) -> None:
        """Keep one older log. Children append to the open file, so copying and emptying it is safe."""
        try:
            if log.stat().st_size > LOG_MAX_BYTES:
                log.with_suffix(".log.1").write_bytes(log.read_bytes())
                os.truncate(log, 0)
        except FileNotFoundError:
            pass

    def get_json(self, path: str) -> dict[str, Any] | None:
        """Body of a health address, whatever its status; None if the web server does not answer."""
        host = "127.0.0.1" if settings.HOST in ("0.0.0.0", "") else "[::1]" if settings.HOST == "::" else settings.HOST
        try:
            with urllib.request.urlopen(f"http://{host}:{settings.PORT}{path}", timeout=5) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            try:
                return json.load(error)
            except ValueError:
                return None
        except (OSError, ValueError):
            return None

    # Stop ----------------------------------------------------------------------------------------------------------
    def stop(self) -> None:
        """Queues first, then trainers that workers had started, then web, then Valkey. A second signal hurries."""
        hurry = self.num_stop_requests + 1
        for phase in sorted({child.program.stop_phase for child in self.children}):
            group = [child for child in self.children if child.program.stop_phase == phase]
            self.stop_group(group, hurry)
            if phase == 0:
                keep = frozenset(child.process.pid for child in self.children if child.process is not None)
                stop_marked(self.mark, grace_s=0 if self.num_stop_requests >= hurry else STRAYS_GRACE_S, keep=keep)
        kill_marked(self.mark)

    def stop_group(self, group: list[Child], hurry: int) -> None:
        for child in group:
            child.ask_to_stop()
        deadline = time.monotonic() + max(child.program.grace_s for child in group)
        while any(child.process is not None and child.ended() is None for child in group):
            if time.monotonic() > deadline or self.num_stop_requests >= hurry:
                break
            time.sleep(POLL_S / 2)
        for child in group:
            child.signal(signal.SIGKILL)
            if child.process is not None:
                child.process.wait()
                child.process = None


def fail(text: str) -> int:
    print(f"counterflow: {text}", file=sys.stderr, flush=True)
    return 1
