"""What an operator says about machines on EC2."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trainer_client.backends import BackendError

REPO_DIR = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class AwsOptions:
    """`offers`: `REGION/INSTANCE_TYPE` -> USD per hour on demand, None where Amazon's list alone knows it.

    `root`: folder of the machines, on the shared file system.

    `python`: interpreter on the machines; `prepare`: lines of shell that come before it.
    """

    offers: Mapping[str, float | None]
    launch_template: str
    root: Path
    python: str
    prepare: str = ""
    price_list: bool = True  # ask Amazon's price list

    def __post_init__(self) -> None:
        missing = [
            name for name, value in (("OFFERS", self.offers), ("LAUNCH_TEMPLATE", self.launch_template)) if not value
        ]
        if missing:
            names = " and ".join(f"COUNTERFLOW_AWS_{name}" for name in missing)
            raise BackendError(f"{names} must be set; see docs/machines.md", permanent=True)

    @property
    def regions(self) -> list[str]:
        return sorted({offer.partition("/")[0] for offer in self.offers})

    def types_in(self, region: str) -> list[str]:
        return sorted(kind for place, _, kind in (offer.partition("/") for offer in self.offers) if place == region)

    def user_data(self, token: str, *, is_spot: bool) -> str:
        """What the machine does when it boots: mount what must be mounted, then run its agent as the server's user."""
        words = [self.python, "-m", "trainer_client.backends.agent", str(self.root / token)]
        words += ["--spot-notices"] if is_spot else []
        user = ["setpriv", f"--reuid={os.getuid()}", f"--regid={os.getgid()}", "--clear-groups"]
        lines = ["#!/bin/sh", *filter(None, [self.prepare]), f"export PYTHONPATH={shlex.quote(str(REPO_DIR))}"]
        return "\n".join([*lines, f"exec {shlex.join([*user, *words])}", ""])
