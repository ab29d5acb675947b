"""A trainer's whole run, to the exit code: of `launch_finetune` and of scripts of one's own alike.

    init_process_group()
    trainer = BidirectionalTrainer(model=…, args=…, source=…, options=BidirectionalOptions(snapshot_dir=…))
    end_process(run_trainer(trainer))

Every rank calls `run_trainer` once, after it has built its trainer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from trainer_client import protocol
from trainer_client.apart import ModelRefused
from trainer_client.busy import busy
from trainer_client.finetune_config import ConfigError
from trainer_client.lastword import told
from trainer_client.mixture import MixtureError
from trainer_client.models import ModelError
from trainer_client.session import Leave
from trainer_client.settings import SettingRefused
from trainer_client.sharddata import ShardDataError
from trainer_client.snapshots import SnapshotCorrupt
from trainer_client.takeup import take_up

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

USER_ERRORS = (ConfigError, ShardDataError, MixtureError, ModelError, ModelRefused, SettingRefused, SnapshotCorrupt)


def run_trainer(trainer: BidirectionalMixin, *, resume: bool = True, refused: Iterable[str] | None = None) -> int:
    """Train to the end, or until all ranks are to leave; the exit code for the process (collective).

    Goes on from the newest snapshot that verifies (not with `resume=False`), except those `refused`, by default those that the
    scheduler names. From here on SIGTERM makes all ranks leave with a snapshot, within a step too. Whatever ends the run, the
    server and `result.json` are told.
    """
    trainer.session.install_signal_handlers()
    return told(trainer.session, lambda: train_through(trainer, resume=resume, refused=refused), USER_ERRORS)


def train_through(trainer: BidirectionalMixin, *, resume: bool = True, refused: Iterable[str] | None = None) -> int:
    """As `run_trainer`, without signal handlers, and with errors left to the caller."""
    if resume:
        take_up(trainer, refused=refused)
    trainer.train()
    with busy(trainer.session.reporter, "end"):
        return _wound_up(trainer)


def _wound_up(trainer: BidirectionalMixin) -> int:
    """The last snapshot and export, then the last word."""
    session, leave, step = trainer.session, trainer.leave, trainer.state.global_step
    if leave is None:
        trainer.saver.save(step)  # waits for one that is still being written
    if leave is None or leave.outcome == "done":
        if trainer.options.eval_every:
            trainer.evaluate_held_out(step)
        if trainer.options.export_every:
            trainer.exporter.wait()
            trainer.export(step)
    trainer.exporter.wait()
    last = leave or Leave("done", protocol.EXIT_DONE, "")
    code = session.finish(
        outcome=last.outcome,
        step=step,
        exit_code=last.exit_code,
        failure_class=last.args.get("failure_class"),
        message="; ".join(part for part in (last.reason, _nonfinite_note(trainer)) if part),
    )
    session.agreement.barrier()
    return code


def _nonfinite_note(trainer: BidirectionalMixin) -> str:
    count = trainer.guard.count
    return f"{count} steps had no finite gradient" if count else ""
