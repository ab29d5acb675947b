"""The batch step of a Slurm job: `python -m trainer_client.backends.slurm_batch FOLDER`, on the first node.

Starts one `rank_keeper` a rank through `srun`, ends the job when keepers do not, and leaves `ended.json`.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from trainer_client.backends.base import LaunchSpec
from trainer_client.backends.rank_files import rank_records, read_json, run_dir_of
from trainer_client.journal import write_durably
from trainer_client.protocol import CLEAN_EXITS, EXIT_SUPERSEDED

LOOK_S = 0.25
KILL_WAIT_S = 15.0


def main(folder_name: str) -> int:
    """Run the launch of the folder once; 0 when all ranks left in order."""
    folder = Path(folder_name)
    spec = LaunchSpec.from_json(json.loads((folder / "spec.json").read_bytes()))
    if not _first_start(folder):
        print("Slurm started this job again; the attempt that it belonged to is over", file=sys.stderr)
        return EXIT_SUPERSEDED
    marker = run_dir_of(folder) / "result.json"
    if marker.exists():
        marker.replace(marker.with_name("result-before.json"))
    code = 0 if (folder / "stop.json").exists() else _srun(folder, spec)
    write_durably(folder / "ended.json", json.dumps({"srun": code, "ended_at": time.time()}).encode())
    ends = [record.get("exit_code") for record in rank_records(folder, spec.num_workers)]
    return 0 if code == 0 or all(end in CLEAN_EXITS for end in ends) else 1


def _first_start(folder: Path) -> bool:
    try:
        with open(folder / "started.json", "x") as file:
            json.dump({"id": os.environ.get("SLURM_JOB_ID"), "nodes": os.environ.get("SLURM_JOB_NODELIST")}, file)
    except FileExistsError:
        return False
    return True


def _srun(folder: Path, spec: LaunchSpec) -> int:
    """All ranks from start to end. A rank that ends badly ends the others; one that leaves in order gives them the grace time."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # the ranks have got it from Slurm, too
    grace_s = max(1, math.ceil(spec.grace_s))
    words = ["srun", "--export=ALL", f"--ntasks={spec.num_workers}", "--kill-on-bad-exit=1", f"--wait={grace_s}"]
    words += ["--output=none", f"--error={folder / 'step.log'}"]  # the keepers copy what ranks print
    keeper = [sys.executable, "-m", "trainer_client.backends.rank_keeper", str(folder)]
    environment = {key: value for key, value in os.environ.items() if key != "SLURM_EXPORT_ENV"}
    step = subprocess.Popen([*words, *keeper], env=environment)
    kill_at: float | None = None
    while step.poll() is None:
        time.sleep(LOOK_S)
        if kill_at is None and (order := read_json(folder / "stop.json")) is not None:
            kill_at = time.monotonic() + float(order["grace_s"]) + KILL_WAIT_S
        if kill_at is not None and time.monotonic() >= kill_at:
            _end_job()
            kill_at = math.inf
    return step.returncode


def _end_job() -> None:
    """Keepers kill their ranks when the grace time is over. One that cannot goes with the whole job, this program included."""
    subprocess.run(["scancel", os.environ["SLURM_JOB_ID"]], check=False, timeout=30, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
