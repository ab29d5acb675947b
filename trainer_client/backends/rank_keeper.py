"""One rank on a node of a cluster: `python -m trainer_client.backends.rank_keeper FOLDER`.

The engine (Slurm, Kubernetes) starts one keeper a rank. The keeper starts the rank's command in its environment, copies its
output to the run's logs, and writes down how it ended. It leaves with 0 when the rank left in order, whatever its exit
code, so that the engine ends the other ranks for a fault alone.

FOLDER is the launch's folder on a file system that all nodes and the server share.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from trainer_client.backends.base import LaunchSpec
from trainer_client.backends.processes import dies_with_parent
from trainer_client.backends.rank_files import CANNOT_START, read_json
from trainer_client.backends.ranklogs import RankLog
from trainer_client.journal import write_durably
from trainer_client.protocol import CLEAN_EXITS, EXIT_SUPERSEDED

LOOK_S = 0.1
MASTER_WAIT_S = 300.0


def main(folder_name: str) -> int:
    """Run the rank that the engine's variables name; 0 when it left in order."""
    folder = Path(folder_name)
    spec = LaunchSpec.from_json(json.loads((folder / "spec.json").read_bytes()))
    rank = int(_first_of("SLURM_PROCID", "RANK", "JOB_COMPLETION_INDEX", "PET_NODE_RANK"))
    if not _first_start(folder, rank):
        print(f"rank {rank} of this launch has run before; a new start is a new attempt's", file=sys.stderr)
        return EXIT_SUPERSEDED
    record: dict[str, Any] = {"rank": rank, "node": _node(), "started_at": time.time()}
    code = _run(folder, spec, rank, record)
    _write(folder, record | {"exit_code": code, "ended_at": time.time()})
    if code in CLEAN_EXITS:
        return 0
    return code if code > 0 else 128 - code


def _first_start(folder: Path, rank: int) -> bool:
    """False when an engine starts the same rank again (requeued, evicted and admitted anew): the attempt is over by then."""
    try:
        (folder / "ranks" / f"rank-{rank}.started").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _run(folder: Path, spec: LaunchSpec, rank: int, record: dict[str, Any]) -> int:
    """Start the command and wait for its end; its exit code, negative for a signal."""
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, _: asked.append(signum))
    environment = rank_environment(folder, spec, rank)
    try:
        process = subprocess.Popen(
            spec.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            preexec_fn=dies_with_parent(),
        )
    except OSError as error:
        _say(Path(spec.run_dir), rank, f"cannot start: {error}")
        return CANNOT_START
    assert process.stdout is not None
    forward = os.environ.get("COUNTERFLOW_FORWARD_TERM") == "1"  # Slurm signals all processes of a task itself
    echo = sys.stdout.buffer if forward else None  # for `kubectl logs`; srun would only carry it to where nobody reads
    log = RankLog(Path(spec.run_dir) / "logs", rank, process.stdout, echo)  # type: ignore[arg-type]
    _write(folder, record | {"pid": process.pid})
    record["pid"] = process.pid
    kill_at: float | None = None
    while process.poll() is None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
        if asked and kill_at is None:
            kill_at = time.monotonic() + _grace_s(folder)
            if forward:
                process.terminate()
        if kill_at is not None and time.monotonic() >= kill_at:
            process.kill()
    log.join(5.0)
    return process.returncode


def _grace_s(folder: Path) -> float:
    """What a stop order gives; without one (the engine itself wants the node back) the engine sets the time."""
    order = read_json(folder / "stop.json")
    return float(order["grace_s"]) if order else math.inf


def rank_environment(folder: Path, spec: LaunchSpec, rank: int) -> dict[str, str]:
    """What torchrun would set, with rank 0's address found through the folder where the engine does not give one."""
    local_rank, local_size = _local_place()
    threads = os.environ.get("SLURM_CPUS_PER_TASK") or str(max(1, len(os.sched_getaffinity(0)) // local_size))
    address, port = _master(folder, rank)
    place = {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(spec.num_workers),
        "LOCAL_WORLD_SIZE": str(local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "COUNTERFLOW_RUN_DIR": spec.run_dir,
        "COUNTERFLOW_JOB": spec.job,
        "COUNTERFLOW_ATTEMPT": spec.attempt,
    }
    quiet = {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    shares = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    loopback = {"GLOO_SOCKET_IFNAME": "lo"} if address.startswith("127.") else {}
    return dict(os.environ) | quiet | shares | loopback | spec.env | place


def _local_place() -> tuple[int, int]:
    """(place among the ranks of this node, their number). Where each rank sees its own GPU alone, its place is 0."""
    place = int(os.environ.get("SLURM_LOCALID", "0"))
    per_node = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "1").split(",")[0].split("(")[0]
    visible = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
    return (place % len(visible) if visible else place), max(1, int(per_node))


def _master(folder: Path, rank: int) -> tuple[str, int]:
    """Address and port of rank 0: the engine's where it gives them, else what rank 0 wrote into the folder."""
    for prefix in ("", "PET_"):  # Kubeflow's torch runtimes speak to torchrun
        if f"{prefix}MASTER_ADDR" in os.environ and "SLURM_PROCID" not in os.environ:
            return os.environ[f"{prefix}MASTER_ADDR"], int(os.environ[f"{prefix}MASTER_PORT"])
    path = folder / "master.json"
    if rank == 0:
        write_durably(path, json.dumps({"address": _address(), "port": _free_port()}).encode())
    deadline = time.monotonic() + MASTER_WAIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 has not said where it is within {MASTER_WAIT_S:g} s ({path})")
        time.sleep(0.1)
    master = json.loads(path.read_bytes())
    return master["address"], master["port"]


def _address() -> str:
    """This node, as the others can reach it."""
    if given := os.environ.get("COUNTERFLOW_NODE_IP"):
        return given
    if os.environ.get("SLURM_NNODES", "1") == "1":
        return "127.0.0.1"
    for name in (os.environ.get("SLURMD_NODENAME", ""), socket.gethostname()):
        with contextlib.suppress(OSError):
            address = socket.gethostbyname(name)
            if name and not address.startswith("127."):
                return address
    return os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port


def _node() -> str:
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname()


def _first_of(*names: str) -> str:
    found = next((os.environ[name] for name in names if name in os.environ), None)
    if found is None:
        raise SystemExit(f"none of {', '.join(names)} is set: an engine starts this program, not a person")
    return found


def _say(run_dir: Path, rank: int, text: str) -> None:
    (run_dir / "logs").mkdir(parents=True, exist_ok=True)
    with open(run_dir / "logs" / f"rank-{rank}.log", "a") as file:
        file.write(text + "\n")


def _write(folder: Path, record: dict[str, Any]) -> None:
    write_durably(folder / "ranks" / f"rank-{record['rank']}.json", json.dumps(record).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
