"""The supervisor keeps its programs alive, stops them all, and refuses to start with one clear line."""

import contextlib
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.ops.installation import Installation
from tests.services import wait_until

TINY = "tests.ops.tiny_installation"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path (a socket's name has little room), removed afterwards."""
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="cf-")).resolve()
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def tiny(folder: Path) -> Iterator[Installation]:
    installation = Installation(folder, TINY)
    installation.start()
    yield installation
    installation.destroy()


def test_every_killed_program_comes_back(tiny: Installation) -> None:
    leaders = {process.pid for process in tiny.processes()}
    for process in tiny.processes():
        process.kill()
    wait_until(
        lambda: len({p.pid for p in tiny.processes()} - leaders) >= 6, within_s=15, what="all six processes run again"
    )
    wait_until(tiny.is_up, within_s=15, what="the web server answers again")


def test_children_of_a_killed_program_do_not_outlive_it(tiny: Installation) -> None:
    parent = next(p for p in tiny.processes("subprocess.run") if p.children())
    child = parent.children()[0]
    parent.kill()
    wait_until(lambda: not child.is_running(), within_s=10, what="the orphan is gone")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_signal_leaves_no_process_and_status_zero(tiny: Installation, number: signal.Signals) -> None:
    tiny.signal(number)
    assert tiny.wait() == 0
    assert tiny.processes() == []


def test_killing_the_supervisor_leaves_no_orphans(tiny: Installation) -> None:
    tiny.signal(signal.SIGKILL)
    wait_until(lambda: tiny.processes() == [], within_s=25, what="the guardian stopped everything")


def test_a_start_right_after_a_kill_waits_for_the_cleaning_and_succeeds(tiny: Installation) -> None:
    before = {process.pid for process in tiny.processes()}
    tiny.signal(signal.SIGKILL)
    tiny.wait()
    tiny.start()
    wait_until(
        lambda: not before & (now := {process.pid for process in tiny.processes()}) and len(now) >= 6,
        within_s=30,
        what="the old processes are gone and the new ones run",
    )
    wait_until(tiny.is_up, within_s=10, what="the web server answers")


def test_a_killed_guardian_is_replaced(tiny: Installation) -> None:
    assert tiny.process is not None
    supervisor = psutil.Process(tiny.process.pid)

    def guardians() -> set[int]:
        """Children of the supervisor that are copies of it."""
        found = set()
        for child in supervisor.children():
            with contextlib.suppress(psutil.Error):
                found |= {child.pid} if child.cmdline() == supervisor.cmdline() else set()
        return found

    old = wait_until(guardians, within_s=5, what="a guardian")
    for pid in old:
        psutil.Process(pid).kill()
    wait_until(lambda: guardians() - old, within_s=10, what="another guardian")


def test_a_second_start_is_refused_in_one_line(tiny: Installation) -> None:
    second = tiny.command()
    assert second.returncode == 1
    assert second.stderr.strip().count("\n") == 0
    assert "already runs here" in second.stderr
    assert str(tiny.port) in second.stderr


def test_stop_ends_a_running_installation(tiny: Installation) -> None:
    assert tiny.command("status").returncode == 0
    assert tiny.command("stop").returncode == 0
    assert tiny.wait() == 0
    assert tiny.command("status").returncode == 1


def test_a_taken_port_is_one_line_that_names_another(folder: Path) -> None:
    installation = Installation(folder, TINY)
    with socket.create_server(("127.0.0.1", installation.port)):
        refused = installation.command()
    assert refused.returncode == 1
    assert refused.stderr.strip().count("\n") == 0
    assert f"Port {installation.port}" in refused.stderr
    assert f"COUNTERFLOW_PORT={installation.port + 1}" in refused.stderr


def test_too_little_disk_is_one_line(folder: Path) -> None:
    refused = Installation(folder, TINY).command(COUNTERFLOW_DISK_FREE_MIN_MIB=str(2**40))
    assert refused.returncode == 1
    assert refused.stderr.strip().count("\n") == 0
    assert "MiB free" in refused.stderr


def test_a_var_dir_that_cannot_be_made_is_one_line(folder: Path) -> None:
    (folder / "file").write_text("not a folder")
    refused = Installation(folder, "webapp.supervisor").command(COUNTERFLOW_VAR_DIR=str(folder / "file" / "var"))
    assert refused.returncode == 1
    assert refused.stderr.strip().count("\n") == 0
    assert "COUNTERFLOW_VAR_DIR" in refused.stderr


def test_a_redis_url_that_does_not_answer_is_one_line_without_its_password(folder: Path) -> None:
    installation = Installation(folder, TINY)
    refused = installation.command(REDIS_URL=f"redis://:hunter22@127.0.0.1:{installation.port}/0")
    assert refused.returncode == 1
    assert refused.stderr.strip().count("\n") == 0
    assert "does not answer" in refused.stderr
    assert "hunter22" not in refused.stderr
