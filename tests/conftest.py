"""Fixtures for every test: the services, where a test asks for one."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.services import EmbeddedValkey, further_redis
from trainer_client.backends import warm

TRAINING = ("backends", "machines", "ops", "trainer", "workers")  # folders with tests that train
TOGETHER = ("tests/backends",)  # folders whose tests share a service that is started once


class ByFile(LoadFileScheduling):
    """Of several processes each gets whole files, and one of them all of a folder in `TOGETHER`."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return next((folder for folder in TOGETHER if path.startswith(f"{folder}/")), path)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_xdist_newgateway(gateway: Any) -> None:
    """Of several processes each has a numbered database of its own in a Redis that is given, from the given number on."""
    if given := os.environ.get("REDIS_URL"):
        channel = gateway.remote_exec("import os; os.environ['REDIS_URL'] = channel.receive()")
        channel.send(further_redis(given, int(gateway.id.removeprefix("gw"))))
        channel.waitclose(60)


def pytest_configure(config: pytest.Config) -> None:
    """Trainers that the local backend starts are forked from one process for the whole run, which imports torch once."""
    if "COUNTERFLOW_WARM_DIR" not in os.environ:  # of several processes the first sets it for all
        folder = Path(tempfile.mkdtemp(prefix="counterflow-warm-"))
        os.environ["COUNTERFLOW_WARM_DIR"] = str(folder)
        config.add_cleanup(lambda: (warm.cool_down(folder), shutil.rmtree(folder, ignore_errors=True)))


def pytest_collection_finish(session: pytest.Session) -> None:
    if any(f"/tests/{folder}/" in str(item.path) for item in session.items for folder in TRAINING):
        warm.warm_up(Path(os.environ["COUNTERFLOW_WARM_DIR"]))


@pytest.fixture(scope="session")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedValkey]:
    """The embedded server, running, for the whole session. Tests that restart it start their own `EmbeddedValkey`."""
    server = EmbeddedValkey(tmp_path_factory.mktemp("valkey"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_url(request: pytest.FixtureRequest) -> str:
    """Address of a real Redis or Valkey: the one in `REDIS_URL` if given, else the embedded server."""
    given = os.environ.get("REDIS_URL")
    return given if given else str(request.getfixturevalue("valkey").url)


@pytest.fixture(scope="session")
def django_db_setup(django_db_setup: None) -> Iterator[None]:
    """The database of this process, and what is done with it after a test that commits."""
    from django.test import TransactionTestCase

    from tests.emptying import empty_database

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TransactionTestCase, "_fixture_teardown", empty_database)
        yield
