"""Taking a boundary snapshot on all ranks, and finding the one to resume from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer_client.agreement import Agreement
from trainer_client.snapshots import Snapshot, SnapshotCorrupt, SnapshotStore
from trainer_client.training_state import LoadedState, capture_rng, model_state, read_state, write_state

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

log = logging.getLogger("counterflow.saving")


class StateSaver:
    """`save(step)` is collective; the outcome is known to all ranks in the same step."""

    def __init__(self, trainer: BidirectionalMixin) -> None:
        self._trainer = trainer
        self.store = SnapshotStore(trainer.options.snapshot_dir)
        self._saved: tuple[int, list[str]] | None = None

    def save(self, step: int) -> str:
        """Write the state as of before `step`; why it failed, or nothing. A failure leaves the snapshot before in force."""
        state = (step, list(self._trainer.session.desk.applied))
        if state == self._saved:
            return ""
        rng = self._trainer.agreement.gather(capture_rng())
        trouble = self._write(step, rng) if self._trainer.session.rank == 0 else None
        trouble = str(self._trainer.agreement.broadcast(trouble) or "")
        self._saved = None if trouble else state
        return trouble

    def _write(self, step: int, rng: list[dict[str, Any]]) -> str:
        """Rank 0: write, read back, announce; only then may the oldest one go."""
        report = self._trainer.session.report_snapshot
        try:
            snapshot = self.store.write(step, lambda folder: write_state(folder, self._head(step), self._tensors(rng)))
            self.store.verify(snapshot.path)
        except (OSError, RuntimeError, ValueError) as error:
            trouble = f"snapshot before step {step} failed: {type(error).__name__}: {error}"
            self._trainer.session.say(trouble, "error")
            return trouble
        told = {"snapshot": snapshot.name, "kind": "gradient", "step": step, "uri": snapshot.uri}
        report(status="verified", num_bytes=snapshot.num_bytes, digest=snapshot.digest, **told)
        for name in self.store.prune(self._trainer.options.keep_snapshots):
            uri = (self.store.root / name).resolve().as_uri()
            report(snapshot=name, kind="gradient", status="deleted", step=int(name.split("-")[1]), uri=uri)
        return ""

    def _head(self, step: int) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "version": 1,
            "step": step,
            "micro_step": 0,
            "world_size": trainer.session.world_size,
            "planned_steps": trainer.args.max_steps,
            "seed": trainer.args.seed,
            "mixture": trainer.source.mixture.state_dict(step),
            "training": trainer.controls.state(),
            "applied": list(trainer.session.desk.applied),
            "nonfinite_steps": trainer.guard.count,
        }

    def _tensors(self, rng: list[dict[str, Any]]) -> dict[str, Any]:
        trainer = self._trainer
        return {
            "model": model_state(trainer.model),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "rng": {str(rank): state for rank, state in enumerate(rng)},
        }


def find_resume(
    root: Path, agreement: Agreement, on_corrupt: Callable[[Path, str], None] | None = None
) -> LoadedState | None:
    """The state to go on from on every rank, or None (collective). Rank 0 verifies; torn snapshots are passed over."""
    found: Snapshot | None = None
    if agreement.rank == 0:
        found = SnapshotStore(root).latest_verified(on_corrupt)
    found = agreement.broadcast(found)
    if found is None:
        return None
    try:
        loaded = read_state(found)
    except (OSError, ValueError, RuntimeError) as error:
        raise SnapshotCorrupt(f"{found.name} verifies but cannot be read: {error}") from error
    agreement.barrier()
    return loaded
