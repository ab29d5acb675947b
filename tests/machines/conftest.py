"""A simulated cloud as a process of its own, for each test that asks for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.machines.moto_cloud import REGION, TEMPLATE, TYPE, MotoCloud
from tests.services import wait_until
from tests.workers.conftest import own_var_dir as own_var_dir
from tests.workers.conftest import runs as runs
from workers.aws.machines import ec2
from workers.simcloud.client import SimClient
from workers.simcloud.faults import Faults

REPO = Path(__file__).resolve().parents[2]
TRACE = {
    "gap_s": 300,
    "past_ticks": 4,
    "zones": {
        "east-1a": {"region": "east-1", "on_demand_usd_per_hour": 3.0, "price": [1.0, 1.25], "availability": [6, 6]},
    },
}


class Provider:
    """`python -m workers.simcloud`; can be killed and started again on the same state."""

    def __init__(self, folder: Path, options: str) -> None:
        self.folder, self.options = folder, options
        self.client = SimClient(folder)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "address").unlink(missing_ok=True)
        argv = [sys.executable, "-m", "workers.simcloud", "--folder", str(self.folder), "--market", self.options]
        self.process = subprocess.Popen(argv, cwd=REPO)
        wait_until((self.folder / "address").exists, within_s=40, what="the simulated cloud listens")

    def kill(self) -> None:
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture(scope="module")
def running_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    """Six spot machines at 1.00 or 1.25 USD an hour of the market, one hour of which lasts half a minute.

    A notice is so long that a loaded machine can follow it in time.
    """
    folder = tmp_path_factory.mktemp("market")
    trace = folder / "trace.json"
    trace.write_text(json.dumps(TRACE))
    running = Provider(folder, f"trace={trace},factor=120,boot_s=0.2,notice_s=150,end_s=0.1")
    running.start()
    yield running
    running.kill()


@pytest.fixture
def provider(running_provider: Provider, own_var_dir: Path, settings: Any) -> Iterator[Provider]:
    """The provider of the module, with an account of the test's own."""
    settings.MARKET, settings.DEPLOYMENT = running_provider.options, f"test-{own_var_dir.name}"
    (own_var_dir / "market").symlink_to(running_provider.folder)
    yield running_provider
    for kind in Faults.KINDS:
        running_provider.client.fault(kind, 0)
    for machine in running_provider.client.machines(""):
        if machine["status"] in ("pending", "running"):
            running_provider.client.kill(machine["token"])


@pytest.fixture(scope="module")
def running_moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoCloud]:
    cloud = MotoCloud(tmp_path_factory.mktemp("ec2"))
    with pytest.MonkeyPatch.context() as patch:
        cloud.start(patch)
        yield cloud
        cloud.stop()


@pytest.fixture
def moto_cloud(running_moto: MotoCloud, own_var_dir: Path, settings: Any) -> Iterator[MotoCloud]:
    """EC2 as the provider, with the machines of this test alone."""
    settings.MARKET, settings.DEPLOYMENT = "", f"test-{own_var_dir.name}"
    settings.BACKENDS, settings.AWS_OFFERS = ("aws", "local"), {f"{REGION}/{TYPE}": 0.526}
    settings.AWS = {"launch_template": TEMPLATE, "python": sys.executable, "prepare": ""}
    ec2.cache_clear()
    yield running_moto
    running_moto.clear()
