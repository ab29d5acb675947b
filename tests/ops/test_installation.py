"""The product as `make up` runs it: every process, end to end."""

import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.ops.installation import Installation
from tests.services import wait_until

pytestmark = [pytest.mark.services, pytest.mark.slow]
PROGRAMS = ["webapp.serve", "-Q control", "-Q urgent", "-Q clock", " beat ", "dramatiq", "valkey-server"]


@pytest.fixture(scope="module")
def installation() -> Iterator[Installation]:
    folder = Path(tempfile.mkdtemp(prefix="cf-")).resolve()
    running = Installation(folder, "webapp.supervisor")
    running.start(within_s=110)
    yield running
    running.destroy()
    shutil.rmtree(folder, ignore_errors=True)


def is_ready(installation: Installation) -> bool:
    health = installation.get("/health/ready")
    return health is not None and health["status"] == "ok"


def leader(installation: Installation, words: str) -> psutil.Process | None:
    """The oldest process of a program: its pool processes are younger."""
    return min(installation.processes(words), key=lambda process: process.create_time(), default=None)


@pytest.mark.timeout(180)
def test_every_queue_gives_a_heartbeat_and_the_installation_becomes_ready(installation: Installation) -> None:
    wait_until(lambda: is_ready(installation), within_s=120, what="ready", every_s=0.5)


@pytest.mark.timeout(180)
def test_any_of_its_programs_comes_back_after_kill_nine(installation: Installation) -> None:
    before = {words: leader(installation, words) for words in PROGRAMS}
    assert all(before.values()), before
    for process in before.values():
        assert process is not None
        process.kill()
    for words, old in before.items():
        wait_until(
            lambda words=words, old=old: (new := leader(installation, words)) is not None and new != old,
            within_s=30,
            what=f"{words} runs again",
        )
    wait_until(lambda: installation.get("/health/live") is not None, within_s=60, what="the web server answers again")


@pytest.mark.timeout(180)
def test_heartbeats_go_on_after_the_broker_restarted_twice(installation: Installation) -> None:
    for _ in range(2):
        old = wait_until(lambda: leader(installation, "valkey-server"), within_s=30, what="Valkey runs")
        old.kill()
        wait_until(
            lambda old=old: (new := leader(installation, "valkey-server")) is not None and new != old,
            within_s=30,
            what="Valkey runs again",
        )

    restarted_at = time.monotonic()

    def all_fresh() -> bool:
        health = installation.get("/health/ready") or {}
        ages_s = health.get("checks", {}).get("queues", {}).get("ages_s", {})
        since_s = time.monotonic() - restarted_at
        return len(ages_s) == 4 and all(age_s is not None and age_s < since_s for age_s in ages_s.values())

    wait_until(all_fresh, within_s=60, what="a fresh heartbeat through every queue", every_s=0.5)


@pytest.mark.timeout(90)
def test_sigterm_stops_all_of_it_within_seconds(installation: Installation) -> None:
    installation.signal(signal.SIGTERM)
    assert installation.wait(within_s=30) == 0
    assert installation.processes() == []
