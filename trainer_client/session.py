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

import contextlib
import importlib.metadata
import json
import logging
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer_client import protocol
from trainer_client.agreement import Agreement
from trainer_client.inbox import DirectiveInbox, ReadyDirective
from trainer_client.journal import JOURNALED, Journal, JournalEntry, write_durably
from trainer_client.outbox import Outbox
from trainer_client.protocol import Ack, Directive
from trainer_client.reporter import Reporter
from trainer_client.system_load import make_sampler
from trainer_client.transport import Transport, read_token

log = logging.getLogger("counterflow.session")

START_WAIT_S = 3.0
FINISH_WAIT_S = 10.0
HOLD_POLL_S = 0.2

Commit = Callable[[], None]
Handler = Callable[[dict[str, Any], bytes | None, int], Commit | None]


class DirectiveRefused(ValueError):
    """A handler's answer to a directive that cannot be followed; the text goes to the person who asked."""


@dataclass(frozen=True, slots=True)
class Leave:
    """All ranks leave before the next step: with which outcome, exit code and reason. `save` asks for a snapshot first."""

    outcome: str
    exit_code: int
    reason: str
    save: bool = True
    args: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Control:
    """What a control point agreed. `sums` are the caller's numbers added over ranks; `changed`: something took effect."""

    step: int
    sums: list[int]
    changed: bool = False
    leave: Leave | None = None


@dataclass(frozen=True)
class SessionConfig:
    """Where to report. Without endpoint or attempt nothing is sent; `offline` keeps reports in the spool only."""

    run_dir: Path
    endpoint: str = ""
    attempt: str = ""
    token: str = ""
    job: str = ""
    offline: bool = False

    @classmethod
    def from_env(cls, run_dir: Path | None = None, endpoint: str = "") -> SessionConfig:
        """From the `COUNTERFLOW_…` variables that the launcher sets."""
        env = os.environ
        return cls(
            run_dir=Path(run_dir or env.get("COUNTERFLOW_RUN_DIR") or "counterflow-run"),
            endpoint=endpoint or env.get("COUNTERFLOW_URL", ""),
            attempt=env.get("COUNTERFLOW_ATTEMPT", ""),
            token=read_token(),
            job=env.get("COUNTERFLOW_JOB", ""),
            offline=env.get("COUNTERFLOW_OFFLINE", "") == "1",
        )


class Session:
    """See the module for the call order. Methods marked collective are called by all ranks."""

    def __init__(
        self, config: SessionConfig, agreement: Agreement | None = None, journal: Journal | None = None
    ) -> None:
        self.config = config
        self.agreement = agreement or Agreement()
        self.rank, self.world_size = self.agreement.rank, self.agreement.world_size
        self.journal = journal
        self._handlers: dict[str, Handler] = {"pause": self._pause, "resume": self._resume, "stop": self._stop}
        self._held = False
        self._leave: Leave | None = None
        self._terminated = threading.Event()
        self._replay: dict[int, list[JournalEntry]] = {}
        self._applied: list[str] = []
        self.past: list[JournalEntry] = []
        self._started_at = time.monotonic()
        self._tokens = self._samples = 0
        self.next_step = 0
        self._transport = self._connect()
        self._inbox = DirectiveInbox(self._transport.fetch if self._transport else None, self._acknowledge)
        self.reporter = self._make_reporter()

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
        if action not in protocol.ACTIONS:
            raise ValueError(f"{action!r} is not an action of the protocol; known: {', '.join(protocol.ACTIONS)}")
        self._handlers[action] = handler

    def start(
        self,
        *,
        planned_steps: int,
        start_step: int = 0,
        shards: Sequence[tuple[str, int]] = (),
        resumed_from: str | None = None,
        loaded_digest: str | None = None,
        applied: Sequence[str] = (),
    ) -> None:
        """Begin reporting (collective). Waits a few seconds at most for the server.

        `shards`: (id, num_samples); `applied`: ids of journaled directives that the resumed state already contains.
        """
        self._started_at = time.monotonic()
        self.next_step = start_step
        self._load_journal(start_step, applied)
        if self.reporter is None:
            return
        self.reporter.start()
        if self.rank == 0:
            self.reporter.post(
                "start", self._start_body(planned_steps, start_step, shards, resumed_from, loaded_digest)
            )
            self.reporter.flush(START_WAIT_S)

    def _start_body(
        self, planned: int, start: int, shards: Sequence[tuple[str, int]], resumed: str | None, digest: str | None
    ) -> dict[str, Any]:
        return {
            "protocol": protocol.PROTOCOL,
            "world_size": self.world_size,
            "start_step": start,
            "planned_steps": planned,
            "capabilities": sorted(self._handlers),
            "host": platform.node(),
            "versions": _versions(),
            "shards": [{"shard": name, "num_samples": count} for name, count in shards],
            "resumed_from": resumed,
            "loaded_digest": digest,
            "memory": None,
        }

    def _load_journal(self, start_step: int, applied: Sequence[str]) -> None:
        """All ranks get the changes of earlier attempts: `past` are in the resumed state, the others are applied in time."""
        entries = list(self.journal.entries()) if self.journal is not None and self.rank == 0 else []
        for entry in self.agreement.broadcast(entries):
            self._inbox.remember(Ack(entry.directive.id, "applied", entry.step, "applied in an earlier attempt"))
            if entry.directive.id in applied:
                self.past.append(entry)
                self._applied.append(entry.directive.id)
            else:
                self._replay.setdefault(max(entry.step, start_step), []).append(entry)

    def applied_ids(self) -> list[str]:
        """Ids of the journaled directives in force, for the snapshot."""
        return list(self._applied)

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
        changed = self._apply_replayed(step)
        while True:
            due, terminated, superseded, *added = self.agreement.sum([*self._flags(step), *sums])
            if superseded:
                self._leave = Leave("stopped", protocol.EXIT_SUPERSEDED, "a newer attempt exists", save=False)
            elif due:
                changed = self._apply_due(step) or changed
            if terminated and self._leave is None:
                self._leave = Leave("preempted", protocol.EXIT_PREEMPTED, "told to leave (SIGTERM)")
            if self._leave is not None or not self._held:
                return Control(step, added, changed, self._leave)
            time.sleep(HOLD_POLL_S)

    def _flags(self, step: int) -> tuple[int, int, int]:
        superseded = self.reporter is not None and self.reporter.superseded.is_set()
        due = self.rank == 0 and self._inbox.anything_due(step)
        return int(due), int(self._terminated.is_set()), int(superseded)

    def _apply_replayed(self, step: int) -> bool:
        entries = self._replay.pop(step, [])
        for entry in entries:
            answer = self._run_handler(entry.directive, entry.data, step)
            if answer.outcome != "applied":
                raise RuntimeError(f"a change of an earlier attempt cannot be repeated at step {step}: {answer.detail}")
        return bool(entries)

    def _apply_due(self, step: int) -> bool:
        """Rank 0's due directives on all ranks, one after the other; acknowledged by rank 0 when all have applied."""
        items: list[ReadyDirective] = self.agreement.broadcast(self._inbox.due(step) if self.rank == 0 else None)
        for item in items:
            answer = self._run_handler(item.directive, item.data, step, journal=True)
            if self.rank == 0:
                self._inbox.remember(answer)
                self._acknowledge(answer)
                self.say(f"directive {item.directive.action} {answer.outcome} at step {step} {answer.detail}".rstrip())
        return bool(items)

    def _run_handler(self, directive: Directive, data: bytes | None, step: int, *, journal: bool = False) -> Ack:
        """Prepare on every rank, compare, then commit on every rank: applied everywhere or nowhere (collective)."""
        commit, outcome, detail = self._prepare(directive, data, step)
        for their_outcome, their_detail in self.agreement.gather((outcome, detail)):
            if their_outcome != "applied":
                return Ack(directive.id, their_outcome, None, their_detail)
        if journal and self.journal is not None and directive.action in JOURNALED:
            trouble = self.agreement.broadcast(self._write_down(JournalEntry(step, directive, data)))
            if trouble:
                return Ack(directive.id, "failed", None, trouble)
        if commit is not None:
            commit()
        log.info("rank %d: directive %s (%s) in force from step %d", self.rank, directive.id, directive.action, step)
        if directive.action in JOURNALED:
            self._applied.append(directive.id)
        return Ack(directive.id, "applied", step)

    def _write_down(self, entry: JournalEntry) -> str:
        """Rank 0 makes the change durable before anyone makes it; why not, or nothing."""
        if self.rank != 0 or self.journal is None:
            return ""
        try:
            self.journal.append(entry)
        except OSError as error:
            return f"the change could not be written down: {error}"
        return ""

    def _prepare(self, directive: Directive, data: bytes | None, step: int) -> tuple[Commit | None, str, str]:
        handler = self._handlers.get(directive.action)
        if handler is None:
            return None, "refused", f"this trainer does not know {directive.action!r}"
        try:
            return handler(directive.args, data, step), "applied", ""
        except DirectiveRefused as error:
            return None, "refused", str(error)
        except Exception as error:  # a directive that fails must be answered and must not end the training
            log.exception("directive %s (%s) failed", directive.id, directive.action)
            return None, "failed", f"{type(error).__name__}: {error}"

    def request_leave(self, leave: Leave) -> None:
        """Leave before the next step; for handlers, hence equal on all ranks."""
        self._leave = leave

    def _pause(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        return lambda: setattr(self, "_held", True)

    def _resume(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        return lambda: setattr(self, "_held", False)

    def _stop(self, args: dict[str, Any], data: bytes | None, step: int) -> Commit:
        leave = Leave("stopped", protocol.EXIT_STOPPED, str(args.get("reason") or "stopped by directive"))
        return lambda: self.request_leave(leave)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "accelerate", "peft", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions
