"""A trainer's whole run, to the exit code: of `launch_finetune` and of scripts of one's own alike.

    init_process_group()
    trainer = BidirectionalTrainer(model=…, args=…, source=…, options=BidirectionalOptions(snapshot_dir=…))
    end_process(run_trainer(trainer))

Every rank calls `run_trainer` once, after it has built its trainer.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer_client import protocol
from trainer_client.apart import ModelRefused
from trainer_client.busy import busy
from trainer_client.fence import StaleAttempt
from trainer_client.finetune_config import ConfigError
from trainer_client.journal import Journal
from trainer_client.mixture import MixtureError
from trainer_client.models import ModelError
from trainer_client.session import Session, SessionConfig
from trainer_client.settings import SettingRefused
from trainer_client.sharddata import ShardDataError
from trainer_client.snapshots import SnapshotCorrupt
from trainer_client.takeup import take_up

if TYPE_CHECKING:
    from trainer_client.trainer import BidirectionalMixin

log = logging.getLogger("counterflow.running")

USER_ERRORS = (ConfigError, ShardDataError, MixtureError, ModelError, ModelRefused, SettingRefused, SnapshotCorrupt)


def run_trainer(trainer: BidirectionalMixin, *, resume: bool = True, refused: Iterable[str] | None = None) -> int:
    """Train to the end, or until all ranks are to leave; the exit code for the process (collective).

    Goes on from the newest snapshot that verifies (not with `resume=False`), except those `refused`, by default those that the
    scheduler names. From here on SIGTERM makes all ranks leave with a snapshot, within a step too. Whatever ends the run, the
    server and `result.json` are told.
    """
    trainer.session.install_signal_handlers()
    return told(trainer.session, lambda: train_through(trainer, resume=resume, refused=refused))


def train_through(trainer: BidirectionalMixin, *, resume: bool = True, refused: Iterable[str] | None = None) -> int:
    """As `run_trainer`, without signal handlers, and with errors left to the caller."""
    if resume:
        take_up(trainer, refused=refused)
    trainer.train()
    with busy(trainer.session.reporter, "end"):
        return _wound_up(trainer)


def told(session: Session, work: Callable[[], int]) -> int:
    """The exit code that `work` gives, or that of what it raises, which the server is told."""
    try:
        return work()
    except StaleAttempt as error:
        log.error("%s", error)
        return session.finish(
            outcome="stopped", step=session.next_step, exit_code=protocol.EXIT_SUPERSEDED, message=str(error)
        )
    except USER_ERRORS as error:
        log.error("%s", error)
        return _fail(session, protocol.EXIT_BAD_CONFIG, "user_error", str(error))
    except Exception as error:  # whatever ended the training is the last thing the server must hear
        log.exception("training failed")
        kind = "out_of_memory" if isinstance(error, MemoryError | torch.OutOfMemoryError) else None
        return _fail(session, 1, kind, "".join(traceback.format_exception_only(error)).strip())


def open_session(snapshot_dir: Path) -> Session:
    """The session that the environment describes, for a run whose snapshots lie in that folder."""
    return Session(SessionConfig.from_env(), journal=Journal(snapshot_dir / "journal"))


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
    message = _nonfinite_note(trainer)
    if leave is None:
        code = session.finish(outcome="done", step=step, exit_code=protocol.EXIT_DONE, message=message)
    else:
        message = "; ".join(part for part in (leave.reason, message) if part)
        code = session.finish(
            outcome=leave.outcome,
            step=step,
            exit_code=leave.exit_code,
            failure_class=leave.args.get("failure_class"),
            message=message,
        )
    session.agreement.barrier()
    return code


def _nonfinite_note(trainer: BidirectionalMixin) -> str:
    count = trainer.guard.count
    return f"{count} steps had no finite gradient" if count else ""


def _fail(session: Session, code: int, failure_class: str | None, message: str) -> int:
    """Report a failure without any collective: the other ranks may be gone."""
    fields: dict[str, Any] = {
        "outcome": "failed",
        "step": session.next_step,
        "failure_class": failure_class,
        "message": message,
    }
    if session.reporter is not None:
        session.reporter.start_if_needed()
    return session.finish(exit_code=code, **fields)
