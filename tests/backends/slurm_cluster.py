"""A real Slurm on loopback: munged, slurmctld and four slurmd on ports of their own, all files in one folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil

from tests.services import free_port, require_service, wait_until

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "setpriv")
NODES = ("n1", "n2", "n3", "n4")
CPUS = 2
CONF = """
ClusterName=counterflow
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
CryptoType=crypto/munge
AuthInfo=socket={folder}/munge/socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
KillWait=2
MessageTimeout=2
MinJobAge=60
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=ondemand Nodes=n[1-4] Default=YES PriorityTier=10 PreemptMode=OFF
PartitionName=spot Nodes=n[1-4] PriorityTier=1 GraceTime=10
PartitionName=harsh Nodes=n[1-4] PriorityTier=1 GraceTime=0
"""


class SlurmCluster:
    """`start`, `stop`; `conf` is what SLURM_CONF must name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self.controller: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        require_service("Slurm", not missing, f"{', '.join(missing)} not found (apt install slurm-wlm munge)")
        require_service("Slurm", os.geteuid() == 0, "its daemons are started as root here")
        self._write()
        self._start_munge()
        self.start_controller()
        for node in NODES:
            (self.folder / f"spool-{node}").mkdir()
            self._daemons.append(self._daemon("slurmd", "-D", "-N", node))
        wait_until(self._all_idle, within_s=60, what="four nodes of Slurm are idle", every_s=0.1)

    def start_controller(self) -> None:
        self.controller = self._daemon("slurmctld", "-D")

    def stop_controller(self) -> None:
        assert self.controller is not None
        self.controller.terminate()
        self.controller.wait(30)

    def stop(self) -> None:
        """What jobs have started ends with its job first; the daemons after that."""
        if self.controller is not None:
            self.run("scancel", "--me")
            deadline = time.monotonic() + 15
            while self.run("squeue", "--noheader") and time.monotonic() < deadline:
                time.sleep(0.2)
            _ended(self.controller)
        for daemon in reversed(self._daemons):
            _ended(daemon)
        for process in self._left():
            process.kill()

    def _left(self) -> list[psutil.Process]:
        """What a job that did not end has left: processes that know this cluster by its file, this one aside."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mine = process.environ().get("SLURM_CONF") == str(self.conf)
                if mine and process.pid not in (os.getpid(), os.getppid()):
                    found.append(process)
        return found

    def run(self, *words: str) -> str:
        done = subprocess.run(words, env=self._environment(), capture_output=True, text=True, timeout=60, check=False)
        return done.stdout

    def _environment(self) -> dict[str, str]:
        return os.environ | {"SLURM_CONF": str(self.conf)}

    def _write(self) -> None:
        host = socket.gethostname().split(".")[0]
        text = CONF.format(host=host, port=free_port(), folder=self.folder)
        for node in NODES:
            text += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={free_port()} CPUs={CPUS} RealMemory=1000\n"
        (self.folder / "state").mkdir()
        self.conf.write_text(text)

    def _start_munge(self) -> None:
        """munged refuses to run as root and wants its folders to be its own, down from the root of the file system."""
        folder = self.folder / "munge"
        folder.mkdir()
        key = folder / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        for path in (folder, key):
            shutil.chown(path, "munge", "munge")
        folder.chmod(0o755)
        files = [f"--{name}-file={folder / name}" for name in ("key", "pid", "log", "seed")]
        user = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"]
        self._daemons.append(self._daemon(*user, "munged", "--foreground", f"--socket={folder / 'socket'}", *files))
        wait_until((folder / "socket").exists, within_s=30, what="munged listens")

    def _daemon(self, *words: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "daemons.log", "ab") as log:
            return subprocess.Popen(words, env=self._environment(), stdout=log, stderr=log, start_new_session=True)

    def _all_idle(self) -> bool:
        return f"idle {len(NODES)}" in self.run("sinfo", "--noheader", "--format=%T %D", "--partition=ondemand")


def _ended(daemon: subprocess.Popen[bytes]) -> None:
    daemon.send_signal(signal.SIGTERM)
    try:
        daemon.wait(3)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
