"""Which processes an installation consists of. Everything is read from the settings; nothing is started here."""

import sys
from dataclasses import dataclass, field

from django.conf import settings

from webapp.supervisor.valkey import server_argv, server_binary, socket_path


@dataclass(frozen=True)
class Program:
    """One process to keep alive. Programs stop in the order of `stop_phase`; each phase waits `grace_s` at most."""

    name: str
    argv: list[str]
    stop_phase: int
    grace_s: float
    env: dict[str, str] = field(default_factory=dict)
    queue: str | None = None  # the queue whose heartbeat shows that this program works,
    silent_s: float = 300.0  # and after how long without one it is started again (a busy program is silent, too)


def _celery(*words: str) -> list[str]:
    return [sys.executable, "-m", "celery", "-A", "workers.celery_app", *words]


def _worker(name: str, *words: str) -> Program:
    argv = _celery("worker", "-Q", name, "-n", f"{name}@%h", "--without-gossip", "--without-mingle", *words)
    # SIGTERM then means: let tasks finish for a few seconds, give the others back to the queue, end.
    return Program(name, argv, stop_phase=0, grace_s=10, env={"REMAP_SIGTERM": "SIGQUIT"}, queue=name)


def _dramatiq() -> Program:
    threads = str(settings.DRAMATIQ_THREADS)
    options = ["--processes", "1", "--threads", threads, "--skip-logging", "--worker-shutdown-timeout", "8000"]
    argv = [sys.executable, "-m", "dramatiq", "workers.dramatiq_app", *options]
    # Few messages in advance: what is fetched early stands in front of what is urgent and comes later.
    return Program(
        "dramatiq",
        argv,
        stop_phase=0,
        grace_s=12,
        env={"dramatiq_queue_prefetch": threads},
        queue="dramatiq",
        silent_s=900,
    )


def valkey_program() -> Program | None:
    """The embedded server, or None where `REDIS_URL` names another. Raises FileNotFoundError if none can run."""
    if not settings.REDIS_IS_EMBEDDED:
        return None
    binary = server_binary()
    if binary is None:
        raise FileNotFoundError("no Valkey server")
    socket = socket_path(settings.REDIS_URL)
    return Program("valkey", server_argv(binary, socket=socket, data_dir=settings.VAR_DIR / "valkey"), 3, 5)


def _market() -> list[Program]:
    """The simulated cloud, where one is wanted."""
    if not settings.MARKET:
        return []
    argv = [
        sys.executable,
        "-m",
        "workers.simcloud",
        "--folder",
        str(settings.VAR_DIR / "market"),
        "--market",
        settings.MARKET,
    ]
    return [Program("market", argv, stop_phase=2, grace_s=5)]


def programs() -> list[Program]:
    """Everything beside Valkey: web, beat, three Celery workers and Dramatiq; a simulated cloud where one is wanted.

    `urgent` has a process of its own, so that neither a long command nor a slow tick stands before a preemption. Of its threads the
    watch over machines may hold two while a provider is slow, one that looks and one that waits for a call.
    """
    return [
        Program("web", [sys.executable, "-m", "webapp.serve"], stop_phase=2, grace_s=6),
        _worker("control", "--pool", "prefork", "--concurrency", str(settings.CONTROL_CONCURRENCY)),
        _worker("urgent", "--pool", "threads", "--concurrency", "3"),
        _worker("clock", "--pool", "threads", "--concurrency", "4"),
        Program("beat", _celery("beat", "--scheduler", "celery.beat.Scheduler", "--pidfile", ""), 0, 5),
        _dramatiq(),
        *_market(),
    ]
