"""Kinds of commands and who carries them out. A handler is called with a `Work` and may be called again for the same command.

A handler returns what to store as the result; it raises `NotYet` when its time has not come, `Passing` for a fault
that a later try may not meet, `Permanent` for one that every try would meet, `Overtaken` where a newer order counts. Everything
else that it raises is treated as passing, and logged.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.utils import timezone

from jobs.models import Command, Job
from jobs.services.commands import LEASE, command_renew

Result = dict[str, Any]


class NotYet(Exception):
    """Come back after `delay`; no try is used up."""

    def __init__(self, reason: str, delay: dt.timedelta = dt.timedelta(seconds=3)) -> None:
        super().__init__(reason)
        self.delay = delay


class Passing(Exception):
    """A fault that may be gone at the next try."""


class Permanent(Exception):
    """A fault that stays."""


class Overtaken(Permanent):
    """No fault: a newer order wants something else, and this one ends for it."""


@dataclass
class Work:
    """One claimed command at work."""

    command: Command
    lease: dt.timedelta = LEASE
    clock: Callable[[], dt.datetime] = field(default=timezone.now)

    @property
    def job(self) -> Job:
        return self.command.job

    @property
    def args(self) -> dict[str, Any]:
        """The arguments of the order. Those of a decision may carry the name of the action as well."""
        return dict(self.command.args)

    def now(self) -> dt.datetime:
        return self.clock()

    def renew(self) -> None:
        """Keep the claim; raises `StaleWrite` when another worker has taken it over."""
        command_renew(command=self.command, now=self.now(), lease=self.lease)


Handler = Callable[[Work], Result]
HANDLERS: dict[str, Handler] = {}


def handles(kind: str) -> Callable[[Handler], Handler]:
    """Registers the handler of one kind of command."""

    def register(handler: Handler) -> Handler:
        assert kind not in HANDLERS, f"two handlers for {kind}"
        HANDLERS[kind] = handler
        return handler

    return register
