"""The backends that can be had here, each behind the same fixture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.bench import Bench, folder_for_all
from tests.backends.slurm_cluster import SlurmCluster
from trainer_client.backends import get_backend

ENGINES = ("local", "slurm")


@pytest.fixture(scope="session")
def slurm_cluster() -> Iterator[SlurmCluster]:
    """Slurm, running, for the whole session. Not below pytest's own folder, which only root may enter: munged is not root."""
    with folder_for_all() as folder:
        cluster = SlurmCluster(folder)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()


@pytest.fixture
def slurm(slurm_cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The Slurm backend on the real cluster."""
    monkeypatch.setenv("SLURM_CONF", str(slurm_cluster.conf))
    backend = get_backend("slurm", partition="ondemand", spot_partition="spot", fresh_s=0.1)
    bench = Bench(backend, tmp_path)
    yield bench
    bench.clear()


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(get_backend("local", root=tmp_path / "root"), tmp_path)
    yield bench
    bench.clear()


@pytest.fixture(params=ENGINES)
def bench(request: pytest.FixtureRequest) -> Bench:
    """Every backend in turn."""
    found: Bench = request.getfixturevalue(request.param)
    return found
