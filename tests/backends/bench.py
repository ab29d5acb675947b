"""A backend on the bench: launches of small scripts, and what is seen of them."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.services import wait_until
from trainer_client.backends import Backend, LaunchSpec, Observation
from trainer_client.backends.base import Handle

WAIT = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(81)); print('ready', flush=True); time.sleep(60)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
)
OVER = ("exited", "lost")
PATIENCE_S = 90.0  # for a loaded machine; nothing here is expected to take long


class Bench:
    """Every value goes through JSON on its way, as it does in production."""

    def __init__(
        self,
        backend: Backend,
        folder: Path,
        claims: str = "",
        machines: Sequence[str] = (),
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.backend = backend
        self.folder = folder
        self._claims = claims  # makes claims unlike those of other tests, where an engine never forgets one
        self._machines = machines  # of a backend whose ranks run on machines that were bought
        self._patience_s = patience_s
        self._handles: list[Handle] = []

    def spec(self, script: str, **fields: Any) -> LaunchSpec:
        plain: dict[str, Any] = {
            "claim": "c1",
            "job": "j1",
            "attempt": "a1",
            "command": [sys.executable, "-c", script],
            "env": {},
            "num_workers": 2,
            "run_dir": str(self.folder / "run"),
            "grace_s": 5.0,
        }
        plain["machines"] = self._machines[: (plain | fields)["num_workers"]]
        spec = LaunchSpec(**plain | fields | {"claim": self.claim(str((plain | fields)["claim"]))})
        return LaunchSpec.from_json(json.loads(json.dumps(spec.to_json())))

    def claim(self, name: str) -> str:
        return f"{name}-{self._claims}" if self._claims else name

    def launch(self, script: str, **fields: Any) -> Handle:
        return self.keep(self.backend.launch(self.spec(script, **fields)))

    def keep(self, handle: Handle) -> Handle:
        """The handle as it comes back from the database."""
        self._handles.append(handle)
        returned: Handle = json.loads(json.dumps(handle))
        return returned

    def over(self, handle: Handle) -> Observation:
        """The end, once it is seen."""

        def look() -> Observation | None:
            seen = Observation(**json.loads(json.dumps(self.backend.poll(handle).to_json())))
            return seen if seen.state in OVER else None

        return wait_until(look, within_s=self._patience_s, what=f"{handle['claim']} ends", every_s=0.15)  # type: ignore[return-value]

    def seen(self, handle: Handle, state: str) -> Observation:
        def look() -> Observation | None:
            seen = self.backend.poll(handle)
            return seen if seen.state == state else None

        return wait_until(look, within_s=self._patience_s, what=f"{handle['claim']} is {state}", every_s=0.15)  # type: ignore[return-value]

    def log(self, rank: int) -> str:
        path = self.folder / "run" / "logs" / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def ready(self, num_workers: int = 2) -> None:
        """Wait until every rank has said so."""
        ranks = range(num_workers)
        wait_until(
            lambda: all("ready" in self.log(rank) for rank in ranks), within_s=self._patience_s, what="ranks are ready"
        )

    def clear(self) -> None:
        for handle in self._handles:
            if self.backend.poll(handle).state not in OVER:
                self.backend.stop(handle, 0.0)
                self.over(handle)


@contextlib.contextmanager
def folder_for_all() -> Iterator[Path]:
    """A folder that other users may enter, too."""
    folder = Path(tempfile.mkdtemp(prefix="counterflow-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
