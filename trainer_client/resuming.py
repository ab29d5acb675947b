"""Going on from a snapshot: everything is put back, and shown to be what was saved, before the first step.

The digest is taken of what model, optimizer, schedule and mixture hold after loading, on every rank. Where it differs, the
snapshot is set aside and the one before is used; where a snapshot is as it was saved and still does not fit, the run was
started with another model or other flags, and it ends with that message.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from trainer_client.digests import combined_digest, differing_parts, part_digests, state_digest
from trainer_client.frozen import check_frozen
from trainer_client.furtherstates import further_states, load_further
from trainer_client.kept import say_kept, settings_given, take_over
from trainer_client.partialstep import PartialStep, Sums, sums_for, takers, together, work_of
from trainer_client.saving import UNREADABLE, compute_environment, proof
from trainer_client.snapshots import SnapshotCorrupt
from trainer_client.training_state import (
    LoadedState,
    digest_parts,
    load_model_state,
    load_optimizer_state,
    restore_rng,
    state_as_saved,
)

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

FallBack = Callable[[LoadedState, str], LoadedState | None]


class NothingToLoad(RuntimeError):
    """No snapshot is left that can be put back; the next start begins at step 0."""


class Resumption:
    """Puts `loaded` into a trainer whose optimizer exists. `fall_back(refused, why)` gives the snapshot before (collective)."""

    def __init__(self, trainer: BidirectionalMixin, loaded: LoadedState, fall_back: FallBack | None) -> None:
        self._trainer, self.loaded, self._fall_back = trainer, loaded, fall_back
        self.digest, self.parts = "", dict[str, str]()
        self.partial: PartialStep | None = None
        self._given = settings_given(trainer)
        take_over(trainer, self._given, loaded.head)

    def put_back(self) -> None:
        """Load, compare, and fall back until it fits (collective)."""
        check_frozen(self._trainer, self._given, self.loaded.head)
        while True:
            trouble = self._attempt()
            troubles = [text for text in self._trainer.agreement.gather(trouble) if text]
            if not troubles:
                say_kept(self._trainer, self._given, self.loaded)
                self._let_go()
                return
            self._give_up_on(troubles[0])

    def _let_go(self) -> None:
        """What is in its place now needs no second memory, and files that are deleted meanwhile no room on the disk."""
        self.loaded = replace(self.loaded, tensors={}, slices=None)

    def _attempt(self) -> str:
        """Load on this rank; what is wrong, or nothing."""
        try:
            live, gradients = self._load()
        except UNREADABLE as error:  # SnapshotCorrupt is one, and so is a file of gradients that cannot be unpickled
            live, gradients, trouble = {}, {}, f"{type(error).__name__}: {error}"
        else:
            trouble = ""
        known: dict[int, str] = {}
        for found in self._trainer.agreement.gather(gradients):
            known |= found
        return trouble or self._difference(live, known)

    def _load(self) -> tuple[dict[str, Any], dict[int, str]]:
        """Everything into its place; what is there now for the digest, and the digests of gradients that this rank read."""
        trainer, loaded = self._trainer, self.loaded
        self._load_tensors()
        load_further(trainer, loaded.tensors)
        trainer.lr_scheduler.load_state_dict(loaded.tensors["scheduler"])
        trainer.source.mixture.load_state_dict(loaded.head["mixture"])
        trainer.args.seed = loaded.head["seed"]  # of dropout and the like, as of the data
        trainer.controls.restore(loaded.head["training"])
        trainer.evaluation_due = bool(loaded.head.get("evaluation_due"))
        trainer.guard.count = int(loaded.head.get("nonfinite_steps", 0))
        self._restore_rng()
        gradients = self._take_partial()
        head = loaded.head | {
            "mixture": trainer.source.mixture.state_dict(loaded.step),
            "training": trainer.controls.state(),
        }
        return head, gradients

    def _load_tensors(self) -> None:
        """Parameters and moments."""
        whole = self.loaded.whole()
        load_model_state(self._trainer.model, whole["model"])
        load_optimizer_state(self._trainer.optimizer, whole["optimizer"])

    def _restore_rng(self) -> None:
        trainer, loaded = self._trainer, self.loaded
        rank = trainer.session.rank
        own = restore_rng(loaded.tensors["rng"].get(str(rank)), seed=trainer.args.seed, step=loaded.step, rank=rank)
        if not own or loaded.head["world_size"] != trainer.session.world_size:
            trainer.session.say(
                f"resumed with {trainer.session.world_size} workers from {loaded.head['world_size']}: micro-batches keep "
                "their own random streams, ranks without a saved stream got a new one"
            )

    def _take_partial(self) -> dict[int, str]:
        """This rank's part of the step under way; digests by old rank of the gradient files that it read."""
        head, session = self.loaded.partial, self._trainer.session
        self.partial = None
        if head is None:
            return {}
        work = work_of(head)
        taken = takers(head["mode"], work, head["held"], session.world_size)[session.rank]
        files = {rank: self.loaded.gradients(rank) for rank in dict.fromkeys(rank for rank, _ in taken)}
        pieces = together([(key, files[rank][key]) for rank, key in taken])
        self.partial = PartialStep(
            work.for_world(session.world_size),
            head["micro_batch"],
            head["num_supervised"],
            self._sums(),
            pieces,
            head["mode"],
        )
        return {rank: state_digest({"pieces": found}) for rank, found in files.items()}

    def _sums(self) -> Sums:
        saved = self.loaded.tensors["sums"]
        by_rank: list[Sums] = [
            {int(shard): (values[0], values[1], values[2]) for shard, values in saved[str(rank)].items()}
            for rank in range(len(saved))
        ]
        return sums_for(self._trainer.session.rank, by_rank, self._trainer.session.world_size)

    def _difference(self, head: dict[str, Any], gradients: dict[int, str]) -> str:
        """Compare what is there now with what was saved."""
        saved = self.loaded.digest_parts
        if saved is None:
            return ""
        empty = state_digest({"pieces": {}})
        all_gradients = [gradients.get(rank, empty) for rank in range(len(self.loaded.head["gradient_digests"]))]
        model, optimizer = self._live()
        further = further_states(self._trainer)
        state = digest_parts(head, model, optimizer, self._trainer.lr_scheduler.state_dict(), all_gradients, further)
        parts = self.parts = part_digests(state)
        self.digest = combined_digest(parts)
        different = differing_parts(parts, saved)
        return f"the loaded state is not the saved one: {', '.join(different)} differ" if different else ""

    def _live(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Parameters, and the state of the optimizer, as they are now."""
        return self._model_state(), self._trainer.optimizer.state_dict()

    def _model_state(self) -> dict[str, Any]:
        return state_as_saved(self._trainer.model, self.loaded.tensors["model"])

    def _give_up_on(self, trouble: str) -> None:
        """Set the snapshot aside and take the one before; or end, where the snapshot is not to blame."""
        loaded, name = self.loaded, self.loaded.snapshot.name
        own = self._is_as_saved() if self._trainer.session.rank == 0 else None
        if self._trainer.agreement.broadcast(own):
            raise SnapshotCorrupt(f"{name} does not fit this run: {trouble}")
        why = f"{name} verifies but cannot be put back: {trouble}"
        found = self._fall_back(loaded, why) if self._fall_back is not None else None
        if found is None:
            raise NothingToLoad(f"{why}; no snapshot before it is left, so the next start begins at step 0")
        self.loaded = found

    def _is_as_saved(self) -> bool:
        """Whether what lies on the disk is what was written, by its digest."""
        loaded, found = self.loaded, None
        with contextlib.suppress(Exception):  # whatever odd content does to it is a difference
            ranks = range(len(loaded.head["gradient_digests"]))
            gradients = [loaded.gradient_digest(rank) for rank in ranks]
            found = proof(loaded.head, loaded.hashed(), gradients)["digest_parts"]
        saved = loaded.digest_parts
        return saved is not None and found == saved


def check_fidelity(trainer: BidirectionalMixin, loaded: LoadedState) -> None:
    """What of the fidelity does not hold from the first step on is said: a step that is under way goes on in the mode in which it
    was begun, and equal bits need equal machines."""
    mode, partial = trainer.options.fidelity, loaded.partial
    if partial is not None and partial["mode"] != mode:
        trainer.session.say(
            f"step {loaded.step} was begun under --fidelity {partial['mode']} and ends under it; {mode} holds from the next one on"
        )
    before, now = loaded.head.get("compute"), compute_environment()
    if mode == "exact" and before is not None and before != now:
        trainer.session.say(f"exact needs equal machines: saved under {before}, resumed under {now}", "warning")
