"""One rank of a job with a command of its own: `python -m workers.job_command`, in the run directory's environment.

Reads `command.json` (`setup`, `run`). The first rank of a machine to come runs `setup`, the others wait for it;
then each becomes `run`.
Standard library only: this runs beside the GPU, not in the server.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

BAD_CONFIGURATION = 64
SHELL = "/bin/sh"


def main() -> int:
    """Becomes the job's command; returns only if it cannot."""
    folder = Path(os.environ["COUNTERFLOW_RUN_DIR"])
    command = json.loads((folder / "command.json").read_text())
    if command.get("setup") and not set_up(folder, command["setup"]):
        print("Error: the setup of the job failed", file=sys.stderr)
        return BAD_CONFIGURATION
    for name, value in trackers().items():
        os.environ.setdefault(name, value)
    sys.stdout.flush()
    os.execv(SHELL, [SHELL, "-c", in_place_of_the_shell(command["run"])])


def in_place_of_the_shell(run: str) -> str:
    """A script that is one plain command replaces its shell, so that SIGTERM reaches it; any other says `exec` itself."""
    try:
        words = list(shlex.shlex(run.strip(), posix=True, punctuation_chars=True))
    except ValueError:
        return run  # the shell will say what is wrong with it
    plain = "\n" not in run.strip() and not any(set(word) <= set("();<>|&") for word in words)
    return f"exec {run}" if plain and words and shutil.which(words[0]) else run


def trackers() -> dict[str, str]:
    """Variables by which a script that knows nothing of Counterflow reports to it: `transformers` does, and so does MLflow."""
    attempt = f"{os.environ['COUNTERFLOW_URL']}/api/v1/attempts/{os.environ['COUNTERFLOW_ATTEMPT']}"
    token = Path(os.environ["COUNTERFLOW_TOKEN_FILE"])
    return {
        "KUBEFLOW_TRAINER_SERVER_URL": f"{attempt}/trainjobs/{os.environ['COUNTERFLOW_JOB']}/status",
        "KUBEFLOW_TRAINER_SERVER_TOKEN": str(token),
        "MLFLOW_TRACKING_URI": f"{attempt}/mlflow",
        "MLFLOW_TRACKING_TOKEN": token.read_text().strip(),
    }


def set_up(folder: Path, script: str) -> bool:
    """Run `script` once for all ranks of this machine. False if it failed, in this rank or another."""
    verdict = folder / "setup.exit_code"
    with (folder / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # given back by the kernel should this rank be killed
        if not verdict.exists():
            done = subprocess.run([SHELL, "-c", script], check=False)
            verdict.write_text(str(done.returncode))
    return verdict.read_text() == "0"


if __name__ == "__main__":
    sys.exit(main())
