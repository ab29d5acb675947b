"""Fixtures for every test: the services, where a test asks for one."""

import os
from collections.abc import Iterator

import pytest

from tests.services import EmbeddedValkey


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
