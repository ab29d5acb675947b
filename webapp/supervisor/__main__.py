"""`python -m webapp.supervisor [--no-demo] [stop|status]`: run an installation, stop it, or say whether it runs."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from webapp.supervisor.demo_market import demo_market
from webapp.supervisor.lock import AlreadyRunning, is_locked, read_lock, take_lock
from webapp.supervisor.loop import Supervisor, fail, say
from webapp.supervisor.preflight import NotReady, check_port, check_redis, check_var_dir
from webapp.supervisor.strays import kill_marked, stop_marked


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m webapp.supervisor", description=__doc__)
    parser.add_argument("action", nargs="?", choices=["run", "stop", "status"], default="run")
    parser.add_argument("--no-demo", action="store_true", help="do not seed the demo team and job")
    options = parser.parse_args(words)
    try:
        address = settings.BASE_URL
    except ImproperlyConfigured as error:
        return fail(str(error))
    if options.action == "run":
        demo = settings.DEMO and not options.no_demo
        if demo:
            demo_market()
        return run(address=address, demo=demo)
    return stop() if options.action == "stop" else status()


def run(*, address: str, demo: bool) -> int:
    """Start everything, keep it running, stop it; 0 after a stop that was asked for."""
    try:
        check_var_dir(settings.VAR_DIR)
        lock = take_lock(settings.VAR_DIR, address=address)
        check_port(settings.HOST, settings.PORT)
        if not settings.REDIS_IS_EMBEDDED:
            check_redis(settings.REDIS_URL)
    except (NotReady, AlreadyRunning) as error:
        return fail(str(error))
    supervisor = Supervisor()
    stop_marked(supervisor.mark, grace_s=5)  # left by a supervisor and a guardian that were both killed
    supervisor.install_signals()
    supervisor.guardian.start()
    try:
        supervisor.start_valkey()
        words = prepare(supervisor, demo=demo)
        if not supervisor.stopping:
            supervisor.start_programs()
        if supervisor.wait_for_web():
            greet(address, words)
        elif not supervisor.stopping:
            say(f"The web server does not answer yet; see {supervisor.log_dir}/web.log. Still trying.")
        supervisor.run()
        say("Stopping …")
    except NotReady as error:
        return fail(str(error))
    finally:
        supervisor.stop()
        kill_marked(supervisor.mark)
        supervisor.guardian.dismiss()
        lock.close()
    say("Stopped.")
    return 0


def prepare(supervisor: Supervisor, *, demo: bool) -> str:
    """Migrate and seed in a process of its own; returns what it printed. Raises NotReady with its last line."""
    argv = [sys.executable, "-m", "webapp.supervisor.prepare", *([] if demo else ["--no-demo"])]
    log = supervisor.log_dir / "prepare.log"
    with log.open("w") as errors, tempfile.TemporaryFile("w+") as words:
        process = subprocess.Popen(
            argv,
            env=supervisor.environment(),
            cwd=settings.BASE_DIR,
            stdout=words,
            stderr=errors,
            start_new_session=True,
        )
        while process.poll() is None:
            if supervisor.stopping:
                process.terminate()
            supervisor.watch()
            time.sleep(0.1)
        words.seek(0)
        said = words.read().strip()
    if process.returncode != 0 and not supervisor.stopping:
        last = (log.read_text().strip().splitlines() or ["no message"])[-1]
        raise NotReady(f"{last} (more in {log})")
    return said


def greet(address: str, words: str) -> None:
    """What a person needs to know first."""
    print(f"\nCounterflow runs at {address}\n")
    if words:
        print(f"{words}\n")
    print(f"Logs: {settings.VAR_DIR}/log/*.log    Health: {address}/health/ready    Stop: Ctrl-C\n", flush=True)


def stop() -> int:
    """Ask a running supervisor to stop and wait for it."""
    pid, _ = read_lock(settings.VAR_DIR)
    if not is_locked(settings.VAR_DIR):
        say("Counterflow does not run here.")
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 60
    while is_locked(settings.VAR_DIR):
        if time.monotonic() > deadline:
            return fail(f"pid {pid} did not stop within a minute.")
        time.sleep(0.1)
    return 0


def status() -> int:
    """0 and the address if a supervisor runs here, else 1."""
    pid, address = read_lock(settings.VAR_DIR)
    if is_locked(settings.VAR_DIR):
        print(f"Counterflow runs at {address} (pid {pid}).")
        return 0
    print("Counterflow does not run here.")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
