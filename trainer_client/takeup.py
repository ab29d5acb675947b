"""Taking up a run where its newest good snapshot ends, and saying so."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from trainer_client.finding import find_resume, set_aside
from trainer_client.indexed import IndexedSource
from trainer_client.samedata import check_same
from trainer_client.snapshots import step_of
from trainer_client.training_state import LoadedState

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin


def take_up(trainer: BidirectionalMixin, *, refused: Iterable[str] | None = None) -> LoadedState | None:
    """Let the trainer go on from the newest snapshot that verifies; None where there is none (collective).

    Those `refused`, by default those that the scheduler names, are set aside first. A snapshot that
    cannot be used is told to the server, and the one before is taken.
    """
    session, store = trainer.session, trainer.options.open_store()
    if refused is None:
        refused = filter(None, os.environ.get("COUNTERFLOW_REFUSE_SNAPSHOTS", "").split(","))

    def refuse(path: Path, why: str) -> None:
        fields = {"snapshot": path.name, "step": step_of(path.name), "uri": store.uri_of(path.name), "detail": why}
        session.report_snapshot(kind="gradient", status="corrupt", **fields)
        session.say(f"{why}; the snapshot before is used", "error")

    def fall_back(loaded: LoadedState, why: str) -> LoadedState | None:
        set_aside(store, loaded.snapshot, why, session.agreement, refuse)
        return find_resume(store, session.agreement, refuse)

    for name in refused if session.rank == 0 else ():
        store.set_aside(name)
    loaded = find_resume(store, session.agreement, refuse)
    if loaded is None:
        session.say("no snapshot to resume from: starting at step 0")
        return None
    session.say(f"resuming before step {loaded.step} from {loaded.snapshot.name}")
    trainer.resume(loaded, fall_back)
    return loaded


def begin_session(trainer: BidirectionalMixin, planned_steps: int) -> None:
    """The trainer's first word, with what it has put back; then changes of earlier attempts are known again (collective)."""
    resumption, session = trainer.resumption, trainer.session
    trainer.saver.frozen()
    if trainer.options.fidelity == "exact" and has_running_statistics(trainer.model):
        session.say(
            "running statistics (BatchNorm) are those of the micro-batches that rank 0 does: exact holds for what is trained, "
            "not for them"
        )
    loaded = resumption.loaded if resumption else None
    session.start(
        planned_steps=planned_steps,
        start_step=loaded.step if loaded else 0,
        shards=list(trainer.source.mixture.num_samples().items()),
        resumed_from=loaded.snapshot.name if loaded else None,
        loaded_digest=(resumption.digest or None) if resumption else None,
        loaded_parts=(resumption.parts or None) if resumption else None,
        applied=loaded.head["applied"] if loaded else (),
        inside_step=loaded is not None and loaded.partial is not None,
    )
    if session.reporter is not None:
        session.reporter.busy = ""  # from here on it says whatever takes the place of steps
    if loaded is not None:
        for text in trainer.source.align():
            session.say(text, "warning")
        trainer.controls.take_past_data(session.desk.past)
        trainer.saver.saved = trainer.saver.key(loaded.step, int(loaded.head["micro_step"]))
    if isinstance(trainer.source, IndexedSource):
        check_same(trainer.source, trainer.options.snapshot_dir, trainer.agreement, resumed=loaded is not None)


def has_running_statistics(model: nn.Module) -> bool:
    """Whether forward passes of the training change buffers, each rank its own."""
    return any(isinstance(part, _NormBase) and part.training and part.track_running_stats for part in model.modules())
