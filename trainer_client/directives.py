"""Directives at a control point: applied on every rank or on none, written down first, answered by rank 0.

A handler works in two halves, so that ranks cannot part: it checks and prepares everywhere, and only when every rank is
ready does its second half make the change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from typing import Any

from trainer_client.agreement import Agreement
from trainer_client.inbox import DirectiveInbox, ReadyDirective
from trainer_client.journal import JOURNALED, Journal, JournalEntry
from trainer_client.protocol import ACTIONS, Ack, Directive

log = logging.getLogger("counterflow.directives")

CHANGES_NO_RESULT = frozenset({"rebalance"})  # of an earlier attempt with other workers: left out where it does not fit

Commit = Callable[[], None]
Handler = Callable[[dict[str, Any], bytes | None, int], Commit | None]


class DirectiveRefused(ValueError):
    """A handler's answer to a directive that cannot be followed; the text goes to the person who asked."""


class DirectiveDesk:
    """Handlers, journal and answers of one rank. Methods marked collective are called by all ranks in the same order."""

    def __init__(
        self,
        agreement: Agreement,
        inbox: DirectiveInbox,
        journal: Journal | None,
        *,
        acknowledge: Callable[[Ack], None],
        say: Callable[[str], None],
    ) -> None:
        self._agreement, self._inbox, self._journal = agreement, inbox, journal
        self.acknowledge, self._say = acknowledge, say
        self._handlers: dict[str, Handler] = {}
        self._replay: dict[int, list[JournalEntry]] = {}
        self.past: list[JournalEntry] = []
        self.applied: list[str] = []

    def on(self, action: str, handler: Handler) -> None:
        """Follow `action` by `handler`; `ValueError` for an action that the protocol does not have."""
        if action not in ACTIONS:
            raise ValueError(f"{action!r} is not an action of the protocol; known: {', '.join(ACTIONS)}")
        self._handlers[action] = handler

    def off(self, action: str) -> None:
        """No longer follow `action`."""
        self._handlers.pop(action, None)

    def capabilities(self) -> list[str]:
        """The actions that have a handler."""
        return sorted(self._handlers)

    def load_journal(self, start_step: int, applied: Sequence[str]) -> None:
        """All ranks get the changes of earlier attempts (collective).

        Those `applied` are in the resumed state (`past`); the others are applied again at their own steps.
        """
        own = list(self._journal.entries()) if self._journal is not None and self._agreement.rank == 0 else []
        for entry in self._agreement.broadcast(own):
            self._inbox.remember(Ack(entry.directive.id, "applied", entry.step, "applied in an earlier attempt"))
            if entry.directive.id in applied:
                self.past.append(entry)
                self.applied.append(entry.directive.id)
            else:
                self._replay.setdefault(max(entry.step, start_step), []).append(entry)

    def apply_replayed(self, step: int) -> bool:
        """Changes of an earlier attempt that belong to `step` (collective); whether there were any."""
        entries = self._replay.pop(step, [])
        for entry in entries:
            answer = self._run(entry.directive, entry.data, step)
            if answer.outcome != "applied" and entry.directive.action not in CHANGES_NO_RESULT:
                raise RuntimeError(f"a change of an earlier attempt cannot be repeated at step {step}: {answer.detail}")
        return bool(entries)

    def apply_due(self, step: int, held: bool, only: Container[str] | None = None) -> bool:
        """Rank 0's due directives on all ranks, one after the other (collective); whether there were any.

        Each is taken out when its turn comes: one that takes long, as an evaluation, sees those behind it.
        """
        some = False
        while (item := self._next(step, held, only)) is not None:
            some = True
            answer = self._run(item.directive, item.data, step, journal=True)
            if self._agreement.rank == 0:
                self._inbox.remember(answer)
                self.acknowledge(answer)
                self._say(f"directive {item.directive.action} {answer.outcome} at step {step} {answer.detail}".rstrip())
        return some

    def _next(self, step: int, held: bool, only: Container[str] | None) -> ReadyDirective | None:
        own = self._inbox.next_due(step, held, only) if self._agreement.rank == 0 else None
        item: ReadyDirective | None = self._agreement.broadcast(own)
        return item

    def _run(self, directive: Directive, data: bytes | None, step: int, *, journal: bool = False) -> Ack:
        """Prepare on every rank, compare, then commit on every rank."""
        commit, outcome, detail = self._prepare(directive, data, step)
        for their_outcome, their_detail in self._agreement.gather((outcome, detail)):
            if their_outcome != "applied":
                return Ack(directive.id, their_outcome, None, their_detail)
        if journal and self._journal is not None and directive.action in JOURNALED:
            trouble = self._agreement.broadcast(self._write_down(JournalEntry(step, directive, data)))
            if trouble:
                return Ack(directive.id, "failed", None, trouble)
        if commit is not None:
            commit()
        rank = self._agreement.rank
        log.info("rank %d: directive %s (%s) in force from step %d", rank, directive.id, directive.action, step)
        if directive.action in JOURNALED:
            self.applied.append(directive.id)
        return Ack(directive.id, "applied", step)

    def _write_down(self, entry: JournalEntry) -> str:
        """Rank 0 makes the change durable before anyone makes it; why not, or nothing."""
        if self._agreement.rank != 0 or self._journal is None:
            return ""
        try:
            self._journal.append(entry)
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
