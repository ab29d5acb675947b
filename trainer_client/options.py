"""What a `BidirectionalTrainer` does beside training."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer_client.addressfence import AddressFence
from trainer_client.fence import Fence
from trainer_client.stores import Guard, SnapshotStore, open_store


@dataclass(frozen=True)
class BidirectionalOptions:
    """What the trainer does beside training. Periods in optimizer steps, 0 for never.

    `on_nonfinite`: a step whose gradient is not finite is `skip`ped (default), or `apply`d as plain Trainer would, or it
    `stop`s the run. It is always flagged, counted and logged; after `max_nonfinite` in a row the run ends as diverged.

    `fidelity`: after a resize the weights are `exact`ly those of any other sequence of worlds; or bit by bit those of the
    `same_world`, and of others up to rounding, which takes the least memory. `check_every`: micro-steps between looks for
    `snapshot` directives inside a step (orders to leave are looked for at every one).
    `async_snapshots`: periodic snapshots are copied in memory and written while training goes on. `snapshot_url`: an fsspec address
    for snapshots instead of `snapshot_dir`, which still holds exports and the journal. `parallel`: each worker holds a copy of the
    model (`ddp`) or a slice of it, its moments and its gradients (`fsdp`). `flags`: other settings of the run, as JSON-compatible
    values by name; they are in its snapshots, and a resume with others says so or refuses them (`kept`).
    """

    snapshot_dir: Path
    snapshot_every: int = 100
    export_every: int = 100
    eval_every: int = 0
    keep_snapshots: int = 2
    on_nonfinite: str = "skip"
    max_nonfinite: int = 10
    fidelity: str = "exact"
    check_every: int = 50
    async_snapshots: bool = False
    snapshot_url: str = ""
    parallel: str = "ddp"
    flags: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.on_nonfinite not in {"skip", "apply", "stop"}:
            raise ValueError(f"on_nonfinite must be skip, apply or stop, not {self.on_nonfinite!r}")
        if self.fidelity not in {"exact", "same_world"}:
            raise ValueError(f"fidelity must be exact or same_world, not {self.fidelity!r}")
        if self.parallel not in {"ddp", "fsdp"}:
            raise ValueError(f"parallel must be ddp or fsdp, not {self.parallel!r}")
        if self.check_every < 1:
            raise ValueError(f"check_every must be at least 1, not {self.check_every}")

    def open_fence(self, number: int, attempt: str) -> Fence:
        """The right of that attempt to write snapshots of the run; `number` 0: one more than the number found there."""
        if self.snapshot_url:
            return AddressFence(self.snapshot_url, self.snapshot_dir, number, attempt)
        return Fence(self.snapshot_dir, number, attempt)

    def open_store(self, guard: Guard = nullcontext) -> SnapshotStore:
        """Where the snapshots of the run lie."""
        return open_store(self.snapshot_url or self.snapshot_dir, cache=self.snapshot_dir / "fetched", guard=guard)
