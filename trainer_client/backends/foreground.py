"""`launch_finetune` by hand: the same launcher as the local backend's, in the foreground."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from pathlib import Path

from trainer_client.backends.base import LaunchSpec
from trainer_client.backends.launcher import Launcher
from trainer_client.finetune_config import FinetuneConfig
from trainer_client.journal import write_durably

DEFAULT_CPU_WORKERS = 2


def run_foreground(config: FinetuneConfig, command: list[str]) -> int:
    """Start the workers, show rank 0's output, wait for the end; the exit code of the completion marker if there is one."""
    claim = f"hand-{secrets.token_hex(4)}"
    folder = config.run_dir / "launches" / claim
    folder.mkdir(parents=True, exist_ok=True)
    env = {"COUNTERFLOW_URL": config.scheduler_endpoint} if config.scheduler_endpoint else {}
    spec = LaunchSpec(
        claim=claim,
        job=os.environ.get("COUNTERFLOW_JOB", ""),
        attempt=os.environ.get("COUNTERFLOW_ATTEMPT", ""),
        command=command,
        env=env,
        num_workers=num_workers(config.max_gpus),
        run_dir=str(config.run_dir),
    )
    write_durably(folder / "spec.json", json.dumps(spec.to_json()).encode())
    code = Launcher(folder, echo=True).run()
    marker = Path(config.run_dir) / "result.json"
    return int(json.loads(marker.read_bytes())["exit_code"]) if marker.exists() else code


def num_workers(max_gpus: int) -> int:
    """`max_gpus` workers; 0 for all GPUs, or up to two processes where there is none."""
    if max_gpus:
        return max_gpus
    gpus = _count_gpus()
    return gpus or min(DEFAULT_CPU_WORKERS, len(os.sched_getaffinity(0)))


def _count_gpus() -> int:
    """As the driver's own tool counts them; asking torch would cost seconds in a process that does not train."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return 0
    listed = subprocess.run([tool, "-L"], capture_output=True, text=True, timeout=20, check=False)
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
