"""One rank's part in a Counterflow attempt: start, control points, reports, finish.

Call order, the same on every rank:

    session = Session.from_env()                     # after init_process_group, if there is one
    session.on("set_weights", handler)               # optional: what this trainer can do beyond pause, resume, stop
    session.start(planned_steps=600, start_step=0)   # collective
    for step in range(start_step, planned_steps):
        control = session.control_point(step)        # collective: directives take effect here, on all ranks
        if control.leave: save(); break
        ...                                          # forward, backward, optimizer step
        session.report_step(step, step_time_s=…, tokens=…, grad_norm=…, lr=…, shards={"id": (loss_sum, tokens, samples)})
    session.finish(…)                                # collective; exit with the code it returns
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer_client import protocol
from trainer_client.agreement import Agreement
from trainer_client.busy import busy
from trainer_client.directives import Commit, DirectiveDesk, DirectiveRefused, Handler
from trainer_client.inbox import LEAVING, DirectiveInbox
from trainer_client.journal import Journal, write_durably
from trainer_client.leaving import Control, Leave
from trainer_client.outbox import Outbox
from trainer_client.protocol import Ack
from trainer_client.reporter import Reporter
from trainer_client.session_config import SessionConfig, installed_versions
from trainer_client.system_load import make_sampler
from trainer_client.transport import Transport

log = logging.getLogger("counterflow.session")

__all__ = ["Control", "DirectiveRefused", "Leave", "Session", "SessionConfig", "open_session"]

START_WAIT_S = 3.0
FINISH_WAIT_S = 10.0
HOLD_POLL_S = 0.2
INSIDE_STEP = LEAVING | {"snapshot"}  # directives that can be followed while a step is under way


class Session:
    """See the module for the call order. Methods marked collective are called by all ranks."""

    def __init__(
        self, config: SessionConfig, agreement: Agreement | None = None, journal: Journal | None = None
    ) -> None:
        self.config = config
        self.agreement = agreement or Agreement()
        self.rank, self.world_size = self.agreement.rank, self.agreement.world_size
        self._held = False
        self._leave: Leave | None = None
        self._terminated = threading.Event()
        self._started_at = time.monotonic()
        self._tokens = self._samples = 0
        self._notes: list[str] = []
        self.next_step = 0
        self._transport = self._connect()
        self._inbox = DirectiveInbox(self._transport.fetch if self._transport else None, self._acknowledge)
        self.reporter = self._make_reporter()
        self.desk = DirectiveDesk(
            self.agreement, self._inbox, journal, acknowledge=self._acknowledge, say=lambda text: self.say(text)
        )
        for action, handler in (("pause", self._pause), ("resume", self._resume), ("stop", self._stop)):
            self.desk.on(action, handler)

    @classmethod
    def from_env(cls, run_dir: Path | None = None) -> Session:
        """The session that the launcher's environment describes."""
        return cls(SessionConfig.from_env(run_dir))

    def _connect(self) -> Transport | None:
        config = self.config
        if not (config.endpoint and config.attempt) or config.offline:
            return None
        return Transport(config.endpoint, config.attempt, config.token)

    def _make_reporter(self) -> Reporter | None:
        if not self.config.attempt:
            if self.rank == 0:
                log.warning("no attempt to report to (COUNTERFLOW_ATTEMPT is not set): training runs without reports")
            return None
        spool = self.config.run_dir / "spool" / self.config.attempt / f"w{self.rank}"
        return Reporter(
            Outbox(spool),
            self._transport,
            worker=self.rank,
            system=make_sampler(int(os.environ.get("LOCAL_RANK", "0"))),
            on_directives=self._inbox.receive if self.rank == 0 else None,
        )

    # -- life ---------------------------------------------------------------------------------------------------------

    def on(self, action: str, handler: Handler) -> None:
        """Declare that this trainer can do `action`.

        `handler(args, data, step)` runs on every rank. It checks and prepares, and returns a function that makes the change
        (called only when every rank is ready), or None when there is nothing left to do. It raises `DirectiveRefused` for
        what cannot be followed. Equal input must give equal results on all ranks.
        """
        self.desk.on(action, handler)

    def start(
        self,
        *,
        planned_steps: int,
        start_step: int = 0,
        shards: Sequence[tuple[str, int]] = (),
        resumed_from: str | None = None,
        loaded_digest: str | None = None,
        loaded_parts: Mapping[str, str] | None = None,
        applied: Sequence[str] = (),
        inside_step: bool = False,
    ) -> None:
        """Begin reporting (collective). Waits a few seconds at most for the server.

        `shards`: (id, num_samples); `loaded_digest`, `loaded_parts`: of the state in memory after loading the
        snapshot `resumed_from`; `applied`: ids of journaled directives that the resumed state already contains;
        `inside_step`: `start_step` is under way already, so that changes can take effect after it only.
        """
        self._started_at = time.monotonic()
        self.next_step = start_step
        self.desk.load_journal(start_step + inside_step, applied)
        if self.reporter is None:
            return
        self.reporter.start()
        if self.rank == 0:
            loaded = {"resumed_from": resumed_from, "loaded_digest": loaded_digest, "loaded_parts": loaded_parts}
            self.reporter.post("start", self._start_body(planned_steps, start_step, shards) | loaded)
            self.reporter.flush(START_WAIT_S)

    def _start_body(self, planned: int, start: int, shards: Sequence[tuple[str, int]]) -> dict[str, Any]:
        return {
            "protocol": protocol.PROTOCOL,
            "world_size": self.world_size,
            "start_step": start,
            "planned_steps": planned,
            "capabilities": self.desk.capabilities(),
            "host": platform.node(),
            "versions": installed_versions(),
            "shards": [{"shard": name, "num_samples": count} for name, count in shards],
            "memory": None,
            "notes": self._notes,
        }

    def install_signal_handlers(self) -> None:
        """SIGTERM asks all ranks to leave at the next control point (exit code 81 after a snapshot)."""
        signal.signal(signal.SIGTERM, lambda *_: self._terminated.set())

    def finish(
        self, *, outcome: str, step: int, exit_code: int, failure_class: str | None = None, message: str = ""
    ) -> int:
        """Last word of the attempt: marker `result.json`, `finish/`, flush. Returns the exit code.

        Collective, with totals over all ranks, unless the outcome is `failed`: then other ranks may be gone, and the totals
        are this rank's own.
        """
        tokens, samples = self._tokens, self._samples
        if outcome != "failed":
            tokens, samples = self.agreement.sum([self._tokens, self._samples])
        body = protocol.finish_body(
            outcome=outcome,
            step=step,
            exit_code=exit_code,
            failure_class=failure_class,
            message=message,
            tokens=tokens,
            samples=samples,
            train_s=time.monotonic() - self._started_at,
        )
        if self.rank == 0:
            self.config.run_dir.mkdir(parents=True, exist_ok=True)
            write_durably(self.config.run_dir / "result.json", json.dumps(body).encode())
        if self.reporter is not None:
            if self.rank == 0:
                self.reporter.post("finish", body)
            if not self.reporter.close(FINISH_WAIT_S):
                log.warning("not all reports were delivered; they wait in %s", self.config.run_dir / "spool")
        return exit_code

    # -- reports ------------------------------------------------------------------------------------------------------

    def report_step(
        self, step: int, *, shards: Mapping[str, tuple[Any, int, int]] | None = None, **columns: Any
    ) -> None:
        """This rank's numbers for one optimizer step (see `StepPoint`); `shards`: id -> (loss_sum in nats, tokens, samples)."""
        self.next_step = step + 1
        self._tokens += sum(part[1] for part in (shards or {}).values())
        self._samples += sum(part[2] for part in (shards or {}).values())
        if self.reporter is not None:
            self.reporter.add_step(step, shards, **columns)

    def say(self, text: str, level: str = "info") -> None:
        """A line in this rank's log and, from rank 0, on the job's page."""
        log.log(logging.getLevelNamesMapping().get(level.upper(), logging.INFO), "%s", text)
        if self.reporter is not None and self.rank == 0:
            self.reporter.say(text, level)

    def note(self, text: str) -> None:
        """A warning that belongs into the history of the job, too; before `start`, with which it goes out."""
        self.say(text, "warning")
        self._notes.append(text)

    def report_snapshot(self, **fields: Any) -> None:
        """Tell the server about a snapshot (rank 0); fields as `protocol.snapshot_body`, without `world_size`."""
        if self.reporter is not None and self.rank == 0:
            self.reporter.post("snapshots", protocol.snapshot_body(world_size=self.world_size, **fields))

    def _acknowledge(self, ack: Ack) -> None:
        if self.reporter is not None:
            self.reporter.acknowledge(ack)

    # -- control points -----------------------------------------------------------------------------------------------

    def control_point(self, step: int, sums: Sequence[int] = ()) -> Control:
        """Agree with all ranks before optimizer step `step` (collective); `sums` [N] integers are added over ranks.

        Directives that are due take effect now. Where `changed` is true the caller's `sums` may be out of date: it computes
        them anew and calls again. Holds here while paused.
        """
        changed = self.desk.apply_replayed(step)
        return self._settled(step, sums, self.agreement.sum([*self._flags(step), *sums]), changed)

    def control_later(self, step: int) -> Callable[[], Control]:
        """The control point before optimizer step `step` in two halves (both collective), around the step before it.

        This one does not wait, so that ranks may drift apart; nothing takes effect before the returned function is called.
        """
        answer = self.agreement.sum_later(self._flags(step))
        return lambda: self._settled(step, (), answer(), self.desk.apply_replayed(step))

    def _settled(self, step: int, sums: Sequence[int], told: list[int], changed: bool) -> Control:
        """What all ranks were `told`; asked again while they hold."""
        while True:
            due, terminated, superseded, *added = told
            if superseded:
                self._leave = Leave("stopped", protocol.EXIT_SUPERSEDED, "a newer attempt exists", save=False)
            elif due:
                changed = self.desk.apply_due(step, self._held) or changed
            self._note_termination(terminated)
            if self._leave is not None or not self._held:
                return Control(step, added, changed, self._leave)
            with busy(self.reporter, "hold"):
                time.sleep(HOLD_POLL_S)
            told = self.agreement.sum([*self._flags(step), *sums])

    def _flags(self, step: int) -> tuple[int, int, int]:
        due = self.rank == 0 and self._inbox.anything_due(step, self._held)
        return int(due), int(self._terminated.is_set()), int(self._superseded())

    def _superseded(self) -> bool:
        return self.reporter is not None and self.reporter.superseded

    def ask(self, step: int, *, directives: bool = False) -> Callable[[], Leave | None]:
        """A control point inside optimizer step `step` or an evaluation before it, in two halves (both collective).

        This one does not wait. The returned function, called after the next piece of work, waits for all ranks, follows orders to
        leave (with `directives` whatever can be followed inside a step), and says whether all leave now.
        """
        only, before = INSIDE_STEP if directives else LEAVING, self._leave
        due = self.rank == 0 and self._inbox.anything_due(step, False, only)
        answer = self.agreement.sum_later([int(due), int(self._terminated.is_set()), int(self._superseded())])

        def settle() -> Leave | None:
            some_due, terminated, superseded = answer()
            if superseded:
                self._leave = Leave("stopped", protocol.EXIT_SUPERSEDED, "a newer attempt exists", save=False)
            elif some_due:
                self.desk.apply_due(step, False, only)
            self._note_termination(terminated)
            return self._leave if terminated or self._leave is not before else None  # a last evaluation goes on

        return settle

    def _note_termination(self, terminated: int) -> None:
        if terminated and self._leave is None:
            self._leave = Leave("preempted", protocol.EXIT_PREEMPTED, "told to leave (SIGTERM)")

    @property
    def leaves(self) -> bool:
        """Whether all were told to leave, equal on all ranks."""
        return self._leave is not None

    def request_leave(self, leave: Leave) -> None:
        """All leave: at once where a step is under way (`ask`), else before the next. For handlers, hence equal on all ranks."""
        self._leave = leave

    def _pause(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        return lambda: setattr(self, "_held", True)

    def _resume(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        return lambda: setattr(self, "_held", False)

    def _stop(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        """With `outcome: done` the goal is reached: the run ends as if it had done its last step."""
        reached = args.get("outcome") == "done"
        outcome, code = ("done", protocol.EXIT_DONE) if reached else ("stopped", protocol.EXIT_STOPPED)
        leave = Leave(outcome, code, str(args.get("reason") or "stopped by directive"))
        return lambda: self.request_leave(leave)


def open_session(snapshot_dir: Path) -> Session:
    """The session that the environment describes, for a run whose snapshots lie in that folder."""
    return Session(SessionConfig.from_env(), journal=Journal(snapshot_dir / "journal"))
