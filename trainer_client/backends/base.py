"""What every backend does, and the plain values that go in and out. All of them survive JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

Handle = dict[str, Any]

STATES = ("starting", "running", "exited", "lost")
SPOT = ("never", "prefer", "only")
_CLAIM = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


class BackendError(Exception):
    """An order that could not be carried out; `permanent` when repeating it cannot help."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


@dataclass(frozen=True, slots=True)
class LaunchSpec:
    """One start of `num_workers` ranks. `command` runs one rank and finds its place in RANK, WORLD_SIZE, ….

    `claim` makes the launch idempotent; `grace_s` is what ranks get between SIGTERM and SIGKILL. `spot`: may it run on machines
    that others can take back: `never`, `prefer` or `only`. `machines`: of each rank, where machines were bought for the launch.
    `gpu`: the type of its GPUs, as the cluster names it; empty: any.
    """

    claim: str
    job: str
    attempt: str
    command: list[str]
    env: dict[str, str]
    num_workers: int
    run_dir: str
    grace_s: float = 30.0
    tags: dict[str, str] = field(default_factory=dict)
    spot: str = "never"
    machines: Sequence[str] = ()
    gpu: str = ""

    def __post_init__(self) -> None:
        if self.spot not in SPOT:
            raise ValueError(f"spot {self.spot!r} is not one of {', '.join(SPOT)}")
        if not _CLAIM.match(self.claim):
            raise ValueError(f"claim {self.claim!r} must be letters, digits, '.', '_' or '-'")
        if self.num_workers < 1:
            raise ValueError(f"num_workers must be at least 1, not {self.num_workers}")
        if not self.command:
            raise ValueError("command must not be empty")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> LaunchSpec:
        return cls(**raw)


@dataclass(frozen=True, slots=True)
class WorkerObservation:
    """One rank's process. `exit_code` is negative for a signal, None while it lives or when it is not known."""

    rank: int
    pid: int | None
    alive: bool
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What a poll saw. `result` is the completion marker of rank 0; it is believed before the exit code.

    `spot`: whether it runs where others can take the node back, if the engine says so. `taken`: the engine's
    words where it took the nodes back itself, which is no fault of the launch. `usd_per_hour`: what all its nodes cost, if the
    engine knows.

    `exited`: all processes have ended and the end is known. `lost`: they are gone, and nothing tells how they ended.
    """

    state: str
    workers: list[WorkerObservation] = field(default_factory=list)
    exit_code: int | None = None
    result: dict[str, Any] | None = None
    detail: str = ""
    failure_class: str | None = None
    spot: bool | None = None
    taken: str = ""
    usd_per_hour: float | None = None

    def __post_init__(self) -> None:
        if self.state not in STATES:
            raise ValueError(f"state {self.state!r} is not one of {', '.join(STATES)}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class Backend(Protocol):
    """Every method may be called from any process, again and again, with a handle that came back from JSON."""

    name: str

    def launch(self, spec: LaunchSpec) -> Handle:
        """Start, or find what an earlier call with the same claim started. `BackendError` when neither is possible."""
        ...

    def poll(self, handle: Handle) -> Observation:
        """Look, change nothing."""
        ...

    def stop(self, handle: Handle, grace_s: float) -> None:
        """Ask all ranks to leave (SIGTERM) and end them after `grace_s`. Returns at once; `poll` shows the end."""
        ...

    def resize(self, handle: Handle, spec: LaunchSpec, grace_s: float) -> Handle:
        """Stop, wait for the end, and launch `spec` (another claim, another size)."""
        ...

    def quotes(self, offers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """What this backend asks for each offer now: the offer with `price_usd_per_hour` and `availability`."""
        ...

    def list(self, tag: str) -> list[Handle]:
        """Handles of everything launched with `tag` (`key=value`) that is still alive; "" for all."""
        ...
