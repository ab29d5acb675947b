"""SkyPilot with nodes: its real API server, and the Slurm of these tests as the cloud, reached over SSH as SkyPilot does.

On its nodes SkyPilot fetches uv from astral.sh, Python 3.10 and Ray. Where those cannot be reached,
`COUNTERFLOW_SKYPILOT_NODE_PROFILE` names a file of shell that every bash there reads first, and that may put another `curl` on
the PATH.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.backends.slurm_cluster import NODES, SlurmCluster
from tests.services import free_port, wait_until

SSHD = "/usr/sbin/sshd"
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host
AuthorizedKeysFile {folder}/user.pub
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
MaxStartups 200
MaxSessions 200
Subsystem sftp internal-sftp
SetEnv SLURM_CONF={conf} HOME={folder}/nodes BASH_ENV={profile}
"""
CLIENT = """
Host bench
    HostName 127.0.0.1
    Port {port}
    User root
    IdentityFile {folder}/user
    IdentitiesOnly yes
    StrictHostKeyChecking no
    UserKnownHostsFile /dev/null
"""
TASK = "resources: {infra: slurm/bench/ondemand, cpus: 1}\n"


class SkyPilotNodes:
    """`start`, `stop`; between them the environment leads SkyPilot's SDK to the server."""

    def __init__(self, python: str, folder: Path, cluster: SlurmCluster) -> None:
        self.sky = str(Path(python).parent / "sky")
        self.folder, self.cluster = folder, cluster
        self._sshd: subprocess.Popen[bytes] | None = None

    def start(self, patch: pytest.MonkeyPatch) -> None:
        if not Path(SSHD).exists():
            pytest.skip(f"{SSHD} not found (apt install openssh-server)")
        if any(not _resolves(node) for node in NODES):
            pytest.skip(f"SkyPilot looks its nodes up: {' '.join(NODES)} must stand in /etc/hosts with 127.0.0.1")
        port = self._start_sshd()
        home = self.folder / "home"
        (home / ".slurm").mkdir(parents=True)
        (home / ".slurm" / "config").write_text(CLIENT.format(port=port, folder=self.folder))
        server_port = free_port()
        patch.setenv("HOME", str(home))
        patch.setenv("SKYPILOT_DISABLE_USAGE_COLLECTION", "1")
        patch.setenv("SKYPILOT_API_SERVER_LOCAL_PORT", str(server_port))
        self._run("api", "start", "--host", "127.0.0.1", "--port", str(server_port))
        self._run("check", "slurm")

    def stop(self) -> None:
        for words in (("down", "--all", "--yes"), ("api", "stop")):
            subprocess.run([self.sky, *words], check=False, timeout=300, stdin=subprocess.DEVNULL)
        if self._sshd is not None:
            self._sshd.terminate()
            self._sshd.wait(30)

    def _run(self, *words: str) -> None:
        subprocess.run([self.sky, *words], check=True, timeout=300, stdin=subprocess.DEVNULL)

    def _start_sshd(self) -> int:
        port, folder = free_port(), self.folder
        (folder / "nodes").mkdir()
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        profile = self._profile()
        config = folder / "sshd_config"
        config.write_text(SERVER.format(port=port, folder=folder, conf=self.cluster.conf, profile=profile))
        Path("/run/sshd").mkdir(exist_ok=True)
        with open(folder / "sshd.log", "wb") as log:
            self._sshd = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=log)
        wait_until(lambda: _listens(port), within_s=20, what="sshd listens")
        return port

    def _profile(self) -> Path:
        """The file that every bash on the nodes reads first; Slurm does not hand the variable of SSH on."""
        profile = self.folder / "profile"
        profile.write_text("")
        if given := os.environ.get("COUNTERFLOW_SKYPILOT_NODE_PROFILE"):
            shutil.copy(given, profile)
        prolog = self.folder / "prolog"
        prolog.write_text(f"#!/bin/sh\necho export BASH_ENV={profile}\n")
        prolog.chmod(0o755)
        self.cluster.conf.write_text(f"{self.cluster.conf.read_text()}\nTaskProlog={prolog}\n")
        self.cluster.run("scontrol", "reconfigure")
        return profile


def _resolves(name: str) -> bool:
    try:
        return socket.gethostbyname(name).startswith("127.")
    except OSError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
