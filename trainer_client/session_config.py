"""Where a session reports to, and what it says about its environment."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from trainer_client.transport import read_token


@dataclass(frozen=True)
class SessionConfig:
    """Where to report. Without endpoint or attempt nothing is sent; `offline` keeps reports in the spool only.

    `fence` orders the attempts of a job: the newest has the highest. 0 where nobody gave one.
    """

    run_dir: Path
    endpoint: str = ""
    attempt: str = ""
    token: str = ""
    job: str = ""
    offline: bool = False
    fence: int = 0

    @classmethod
    def from_env(cls, run_dir: Path | None = None, endpoint: str = "") -> SessionConfig:
        """From the `COUNTERFLOW_…` variables that the launcher sets."""
        env = os.environ
        return cls(
            run_dir=Path(run_dir or env.get("COUNTERFLOW_RUN_DIR") or "counterflow-run"),
            endpoint=endpoint or env.get("COUNTERFLOW_URL", ""),
            attempt=env.get("COUNTERFLOW_ATTEMPT", ""),
            token=read_token(),
            job=env.get("COUNTERFLOW_JOB", ""),
            offline=env.get("COUNTERFLOW_OFFLINE", "") == "1",
            fence=int(env.get("COUNTERFLOW_FENCE") or 0),
        )


def installed_versions() -> dict[str, str]:
    """Of Python and the libraries that decide how a run computes."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "accelerate", "peft", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
