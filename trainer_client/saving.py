"""Taking a snapshot on all ranks, at once or behind the back of the training."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer_client.accumulation import Piece
from trainer_client.busy import busy
from trainer_client.digests import combined_digest, part_digests, state_digest
from trainer_client.fence import StaleAttempt
from trainer_client.flushing import Flush
from trainer_client.frozen import frozen_digests
from trainer_client.furtherstates import FURTHER, further_states
from trainer_client.kept import flags_of
from trainer_client.partialstep import PartialStep
from trainer_client.snapshots import Measured, Snapshot, SnapshotCorrupt, step_of
from trainer_client.staging import Staging
from trainer_client.training_state import (
    capture_rng,
    digest_parts,
    model_state,
    write_head,
    write_tensors,
)

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

UNREADABLE = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError, pickle.UnpicklingError)


@dataclass
class Draft:
    """What a rank writes: its part of one snapshot, and how that went. `slices`: of a model in slices."""

    head: dict[str, Any]
    tensors: dict[str, Any]
    gradients: list[dict[str, Piece]]
    slices: dict[str, Any] = field(default_factory=dict)
    begun_at: float = field(default_factory=time.perf_counter)
    trouble: str = ""
    stale: bool = False
    done: threading.Event = field(default_factory=threading.Event)


class StateSaver:
    """All methods but `failed` are collective, so that every rank knows the outcome.

    A save with `wait=False` returns when the state has been copied; a thread of rank 0 writes, without any collective. Its
    outcome is known to all ranks after `settle`, which the next save, the end of the run and a failure bring about.
    """

    def __init__(self, trainer: BidirectionalMixin) -> None:
        self._trainer = trainer
        config = trainer.session.config
        self._fence = trainer.options.open_fence(config.fence, config.attempt)
        self.store = trainer.options.open_store(self._fence.held)
        self.saved: tuple[Any, ...] | None = None
        self.stale = False
        self._draft: Draft | None = None
        self._under_way = False
        self._staging = Staging()
        self._frozen: dict[str, str] | None = None

    def claim(self) -> None:
        """Take over from older attempts; `StaleAttempt` on all ranks where a newer one has."""
        trouble = ""
        if self._trainer.session.rank == 0:
            try:
                self._fence.claim()
            except StaleAttempt as error:
                trouble = str(error)
        trouble = self._trainer.agreement.broadcast(trouble)
        if trouble:
            raise StaleAttempt(trouble)

    def frozen(self) -> dict[str, str]:
        """Digests of the weights that the run does not train; hashed at the first call, before the first save."""
        if self._frozen is None:
            self._frozen = frozen_digests(self._trainer)
        return self._frozen

    def save(self, step: int, partial: PartialStep | None = None, *, wait: bool = True) -> str:
        """Write the state as of before `step`, or in the midst of it; why it failed, or nothing.

        A failure leaves the snapshot before in force. What has been saved already is not saved again.
        """
        with busy(self._trainer.session.reporter, "save"):
            return self._save(step, partial, wait)

    def _save(self, step: int, partial: PartialStep | None, wait: bool) -> str:
        self.frozen()
        key = self.key(step, partial.work.num_done if partial else 0)
        trouble = self.settle() if self._under_way else ""
        if key == self.saved:
            return trouble
        self._draft = self._drafted(step, partial, copy=not wait)
        self._under_way = True
        if self._draft is not None:
            self._start(self._draft, wait)
        self.saved = key
        return self.settle() if wait else ""

    def key(self, step: int, micro_step: int) -> tuple[Any, ...]:
        """What makes one state of this run different from another."""
        return step, micro_step, self._trainer.evaluation_due, tuple(self._trainer.session.desk.applied)

    def failed(self) -> bool:
        """Whether a write of this rank has ended badly without all ranks knowing it yet. Not collective."""
        draft = self._draft
        return draft is not None and draft.done.is_set() and bool(draft.trouble)

    def settle(self) -> str:
        """Wait for the snapshot under way; why it failed, or nothing."""
        if not self._under_way:
            return ""
        draft, self._draft, self._under_way = self._draft, None, False
        with busy(self._trainer.session.reporter, "save"):
            if draft is not None:
                draft.done.wait()
        own = (draft.trouble, draft.stale) if draft is not None else ("", False)
        outcomes = self._trainer.agreement.gather(own)
        trouble = next((text for text, _ in outcomes if text), "")
        self.stale = self.stale or any(stale for _, stale in outcomes)
        if trouble:
            self.saved = None
        return trouble

    # -- what goes in -------------------------------------------------------------------------------------------------

    def _drafted(self, step: int, partial: PartialStep | None, *, copy: bool) -> Draft | None:
        """Bring together what the ranks hold (collective); rank 0 gets it, copied if training goes on meanwhile."""
        trainer = self._trainer
        by_rank = self._own(partial)
        gradients = self._collected(partial.pieces) if partial is not None else []
        if trainer.session.rank > 0:
            return None
        tensors = self._tensors(by_rank)
        head = self._head(step, partial, gradients)
        return Draft(head, self._staging.copy(tensors) if copy else tensors, gradients)

    def _collected(self, pieces: Any) -> list[dict[str, Piece]]:
        """The pieces of every rank in CPU memory, on rank 0."""
        agreement = self._trainer.agreement
        names = agreement.gather([(key, name) for key, piece in pieces.items() for name in piece])
        tensors = agreement.collect([tensor for piece in pieces.values() for tensor in piece.values()])
        found: list[dict[str, Piece]] = []
        for rank_names, rank_tensors in zip(names, tensors or (), strict=False):
            found.append({})
            for (key, name), tensor in zip(rank_names, rank_tensors, strict=True):
                found[-1].setdefault(key, {})[name] = tensor
        return found

    def _head(self, step: int, partial: PartialStep | None, gradients: Sequence[dict[str, Piece]]) -> dict[str, Any]:
        trainer = self._trainer
        under_way = partial.head() | {"held": [list(pieces) for pieces in gradients]} if partial else None
        return {
            "version": 2,
            "step": step,
            "micro_step": partial.work.num_done if partial else 0,
            "partial": under_way,
            "world_size": trainer.session.world_size,
            "planned_steps": trainer.args.max_steps,
            "seed": trainer.args.seed,
            "fidelity": trainer.options.fidelity,
            "compute": compute_environment(),
            "mixture": trainer.source.mixture.state_dict(step),
            "training": trainer.controls.state(),
            "applied": list(trainer.session.desk.applied),
            "evaluation_due": trainer.evaluation_due,
            "nonfinite_steps": trainer.guard.count,
            "flags": flags_of(trainer),
            "frozen": self._frozen or {},
        }

    def _tensors(self, by_rank: Sequence[dict[str, Any]]) -> dict[str, Any]:
        trainer = self._trainer
        return further_states(trainer) | {
            "model": model_state(trainer.model),
            "optimizer": trainer.optimizer.state_dict(),
            "scheduler": trainer.lr_scheduler.state_dict(),
            "rng": {str(rank): own["rng"] for rank, own in enumerate(by_rank)},
            "sums": {
                str(rank): {shard: list(values) for shard, values in own["sums"].items()}
                for rank, own in enumerate(by_rank)
            },
        }

    def _own(self, partial: PartialStep | None) -> list[dict[str, Any]]:
        """Random state and sums by shard of every rank (collective)."""
        return self._trainer.agreement.gather({"rng": capture_rng(), "sums": partial.sums if partial else {}})

    # -- in a thread or not; on rank 0, and on all ranks for a model in slices ---------------------------------------------

    def _start(self, draft: Draft, wait: bool) -> None:
        if wait:
            self._write(draft)
        else:
            threading.Thread(target=self._write, args=(draft,), name="counterflow-snapshot", daemon=True).start()

    def _write(self, draft: Draft) -> None:
        """Write, read back, announce; only then may the oldest one go."""
        where = f"snapshot before step {draft.head['step']}"
        draft.trouble = f"{where} is not written"  # until it is known better
        try:
            self._write_and_announce(draft)
            draft.trouble = ""
        except StaleAttempt as error:
            draft.trouble, draft.stale = f"{where} was not written: {error}", True
        except Exception as error:  # noqa: BLE001 - clients of stores have errors of their own kinds; training goes on
            draft.trouble = f"{where} failed: {type(error).__name__}: {error}"
            if self._trainer.session.rank == 0:
                self._trainer.session.say(draft.trouble, "error")
        except BaseException as error:
            draft.trouble = f"{where} was ended by {type(error).__name__}: {error}"
            raise
        finally:
            draft.done.set()

    def _write_and_announce(self, draft: Draft) -> None:
        head, details = dict(draft.head), {"world_size": draft.head["world_size"]}

        def fill(folder: Path, flush: Flush) -> Measured:
            with ThreadPoolExecutor(1, thread_name_prefix="proof") as pool:
                proven = pool.submit(
                    lambda: proof(head, draft.tensors, [state_digest({"pieces": p}) for p in draft.gradients])
                )
                measured = write_tensors(folder, flush, draft.tensors, draft.gradients)
                head.update(proven.result())
            details["digest"] = head["digest"]
            write_head(folder, head)
            return measured

        snapshot = self.store.write(head["step"], fill, details, micro_step=head["micro_step"])
        try:
            self.store.verify(snapshot.path, from_disk=True)
        except SnapshotCorrupt as error:
            self._refuse(snapshot, str(error))
            raise
        self._announce(snapshot, head, time.perf_counter() - draft.begun_at)

    def _refuse(self, snapshot: Snapshot, why: str) -> None:
        """It is not what was written: it counts no more, so that no good one is deleted for it."""
        self.store.set_aside(snapshot.name)
        fields: dict[str, Any] = {"snapshot": snapshot.name, "step": snapshot.step, "micro_step": snapshot.micro_step}
        fields["uri"] = self.store.uri_of(snapshot.name)
        self._trainer.session.report_snapshot(kind="gradient", status="corrupt", detail=why, **fields)

    def _announce(self, snapshot: Snapshot, head: dict[str, Any], save_s: float) -> None:
        """It has been read back: tell, and delete the oldest."""
        report, step = self._trainer.session.report_snapshot, head["step"]
        told = {"snapshot": snapshot.name, "kind": "gradient", "step": step, "uri": self.store.uri_of(snapshot.name)}
        told |= {"micro_step": head["micro_step"], "num_bytes": snapshot.num_bytes, "digest": head["digest"]}
        report(status="verified", parts=head["digest_parts"], save_s=save_s, **told)
        for name in self.store.prune(self._trainer.options.keep_snapshots):
            uri = self.store.uri_of(name)
            report(snapshot=name, kind="gradient", status="deleted", step=step_of(name), uri=uri)


def proof(head: dict[str, Any], tensors: dict[str, Any], gradients: Sequence[str]) -> dict[str, Any]:
    """Digests by which a later attempt shows that it holds the same state."""
    further = {FURTHER: tensors[FURTHER]} if FURTHER in tensors else {}
    own = digest_parts(head, tensors["model"], tensors["optimizer"], tensors["scheduler"], gradients, further)
    parts = part_digests(own)
    return {"digest": combined_digest(parts), "digest_parts": parts, "gradient_digests": list(gradients)}


def compute_environment() -> dict[str, Any]:
    """What equal bits depend on beside the program: threads and instruction set."""
    return {"num_threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}
