"""Taking a snapshot of a model in slices: every rank writes its own rows, and it counts only when all have done so.

The acts are the same on every rank: rank 0 begins a draft; each writes, makes durable and measures its own file; the digests of
whole tensors are computed together; rank 0 publishes; each reads its own file back; rank 0 announces. What stops one of them
stops all, in the same act. Behind the back of the training a thread of each rank does the same; they talk by a group of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.distributed.tensor import DTensor

from trainer_client.accumulation import Piece
from trainer_client.agreement import Agreement
from trainer_client.digests import Known, state_digest
from trainer_client.flushing import Flush
from trainer_client.partialstep import PartialStep
from trainer_client.saving import Draft, StateSaver, proof
from trainer_client.slicedigests import rows_of, slice_digests
from trainer_client.slicefiles import (
    MODEL,
    OPTIMIZER,
    gradient_paths,
    gradient_pieces,
    slice_file,
    slice_number,
    with_slices,
    write_slices,
)
from trainer_client.slices import local
from trainer_client.snapshots import Snapshot, SnapshotCorrupt
from trainer_client.staging import Staging
from trainer_client.training_state import model_state, write_head, write_tensors

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

T = TypeVar("T")


class SliceSaver(StateSaver):
    """See the module; the interface is that of `StateSaver`."""

    def __init__(self, trainer: BidirectionalMixin) -> None:
        super().__init__(trainer)
        self._talk = Agreement(separate=True)

    def _drafted(self, step: int, partial: PartialStep | None, *, copy: bool) -> Draft:
        """What this rank holds, copied into CPU memory (collective)."""
        trainer = self._trainer
        tensors = self._tensors(self._own(partial))
        live: dict[str, torch.Tensor] = dict(live_slices(trainer.model, trainer.optimizer))
        if partial is not None:
            live |= gradient_paths(partial.pieces)
        slices = {path: (local(tensor), tuple(tensor.shape)) for path, tensor in live.items()}
        staging = self._staging if copy else Staging()
        staged = staging.copy({"tensors": without_slices(tensors), "slices": slices})
        others: list[dict[str, Piece]] = [{} for _ in range(1, trainer.session.world_size)]
        held = (
            [dict(partial.pieces), *others] if partial is not None else []
        )  # the gradient in slices counts as rank 0's
        head = self._head(step, partial, held) | {"version": 3, "slices": trainer.session.world_size}
        return Draft(head, staged["tensors"], [{} for _ in held], staged["slices"])

    def _write_and_announce(self, draft: Draft) -> None:
        folder = self._first(lambda: self.store.begin(draft.head["step"]))
        try:
            with Flush() as flush:
                measured = self._all(lambda: self._write_own(folder, draft, flush))
                digests = slice_digests(draft.slices, self._talk)
                self._all(flush.wait)
                snapshot, head = self._first(lambda: self._publish(folder, draft, measured, digests, flush))
        except Exception as error:
            if self._talk.rank == 0:
                self.store.abandon(folder, error)
            raise
        wrong = next((text for text in self._all(lambda: self._misread(snapshot)) if text), "")
        if wrong:
            self._first(lambda: self._refuse(snapshot, wrong))
            raise SnapshotCorrupt(wrong)
        self._first(lambda: self._announce(snapshot, head, time.perf_counter() - draft.begun_at))

    def _write_own(self, folder: Path, draft: Draft, flush: Flush) -> dict[str, Any]:
        """This rank's file, on its way to the disk; its size and checksum."""
        path, rank, world = folder / slice_file(self._talk.rank), self._talk.rank, self._talk.world_size
        starts = {name: rows_of(shape[0], rank, world).start for name, (_, shape) in draft.slices.items()}
        return write_slices(path, flush, draft.slices, starts)

    def _publish(
        self, folder: Path, draft: Draft, measured: list[dict[str, Any]], digests: dict[str, Known], flush: Flush
    ) -> tuple[Any, dict[str, Any]]:
        """Rank 0: what is not in slices, the proof, the manifest. The snapshot and its head."""
        files = write_tensors(folder, flush, draft.tensors)
        gradients = [state_digest({"pieces": {}}) for _ in draft.gradients]
        if gradients:
            gradients[0] = state_digest({"pieces": gradient_pieces(digests, digests.__getitem__)})
        whole = with_slices(draft.tensors, digests, digests.__getitem__)
        head = draft.head | proof(draft.head, whole, gradients)
        write_head(folder, head)
        details = {"world_size": head["world_size"], "digest": head["digest"]}
        files |= {slice_file(rank): entry for rank, entry in enumerate(measured)}
        publish = self.store.publish
        return publish(folder, head["step"], details, files, flush=flush, micro_step=head["micro_step"]), head

    def _misread(self, snapshot: Snapshot) -> str:
        """What this rank finds wrong with its part on the disk, or nothing."""
        try:
            self.store.verify(snapshot.path, from_disk=True, only=self._is_own)
        except SnapshotCorrupt as error:
            return str(error)
        return ""

    def _is_own(self, name: str) -> bool:
        """Whether this rank reads that file back: its own, and on rank 0 what is nobody's."""
        return (slice_number(name) or 0) == self._talk.rank

    def _first(self, work: Callable[[], T]) -> T:
        """What `work` gives on rank 0, on every rank; raises on all where it raises there (collective)."""
        return self._all(work if self._talk.rank == 0 else lambda: None)[0]  # type: ignore[return-value]

    def _all(self, work: Callable[[], T]) -> list[T]:
        """What `work` gives on each rank; raises on all where it raises on one (collective)."""
        result, own = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the others wait to hear of it
            own = error
        told = self._talk.gather((result, f"{type(own).__name__}: {own}" if own is not None else ""))
        if own is not None:
            raise own
        for rank, (_, trouble) in enumerate(told):
            if trouble:
                raise RuntimeError(f"worker {rank}: {trouble}")
        return [found for found, _ in told]


def live_slices(model: torch.nn.Module, optimizer: Any) -> dict[str, DTensor]:
    """Parameters and moments that are in slices, by path."""
    found = {f"{MODEL}/{name}": tensor for name, tensor in model_state(model).items() if isinstance(tensor, DTensor)}
    for place, entry in optimizer.state_dict()["state"].items():
        found |= {f"{OPTIMIZER}/{place}/{name}": value for name, value in entry.items() if isinstance(value, DTensor)}
    return found


def without_slices(tensors: dict[str, Any]) -> dict[str, Any]:
    """What is left for `tensors.pt`."""
    state = {place: _plain(entry) for place, entry in tensors[OPTIMIZER]["state"].items()}
    return tensors | {MODEL: _plain(tensors[MODEL]), OPTIMIZER: tensors[OPTIMIZER] | {"state": state}}


def _plain(entries: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entries.items() if not isinstance(value, DTensor)}
