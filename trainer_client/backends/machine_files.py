"""What a machine and the server tell each other, in the machine's folder on the file system that both see.

`{root}/{machine}/`: `agent.json` (the machine's agent lives, and where), `notice.json` (the provider takes the machine),
`order.json` (which rank of which launch to run), `gone.json` (the provider has confirmed its end). `{root}/launches/`: one handle
a launch.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from trainer_client.backends.rank_files import read_json
from trainer_client.journal import write_durably

SILENT_S = 60.0  # an agent writes every two seconds; clocks of server and machine may differ by some of it


class MachineFiles:
    """The folder of one machine. Reads return None for what was not written yet."""

    def __init__(self, root: Path, machine: str) -> None:
        self.folder = root / machine

    def make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

    def agent(self) -> dict[str, Any] | None:
        """`at` (unix seconds of its last sign), `address`, `pid`."""
        return read_json(self.folder / "agent.json")

    def agent_write(self, body: dict[str, Any]) -> None:
        self._write("agent.json", {"at": time.time(), **body})

    def silent_s(self) -> float | None:
        """Seconds since the agent's last sign; None before the first."""
        said = self.agent()
        return None if said is None else time.time() - float(said["at"])

    def notice(self) -> dict[str, Any] | None:
        """`at` and `ends_by`, unix seconds."""
        return read_json(self.folder / "notice.json")

    def notice_write(self, ends_by: float) -> None:
        if self.notice() is None:
            self._write("notice.json", {"at": time.time(), "ends_by": ends_by})

    def order(self) -> dict[str, Any] | None:
        """`folder` of the launch and `rank`."""
        return read_json(self.folder / "order.json")

    def order_write(self, launch: Path, rank: int) -> None:
        self._write("order.json", {"folder": str(launch), "rank": rank})

    def is_gone(self) -> bool:
        return (self.folder / "gone.json").exists()

    def gone_write(self) -> None:
        if self.folder.is_dir() and not self.is_gone():
            self._write("gone.json", {"at": time.time()})

    def lives(self) -> bool:
        """Whether something may run on it: it has not ended, and its agent is not silent. True before the agent's first sign."""
        silent_s = self.silent_s()
        return not self.is_gone() and (silent_s is None or silent_s < SILENT_S)

    def _write(self, name: str, body: dict[str, Any]) -> None:
        write_durably(self.folder / name, json.dumps(body).encode())
