"""Domain errors. They know no HTTP; `webapp/api/problems.py` maps them in one table."""

from __future__ import annotations

from typing import Any


class DomainError(Exception):
    """Something the domain refuses. `code` is stable for programs, the message is for people."""

    code = "domain_error"

    def __init__(self, message: str, **extra: Any) -> None:
        super().__init__(message)
        self.message = message
        self.extra = extra


class NotFound(DomainError):
    """The object does not exist, or not for this person: a stranger cannot tell the difference."""

    code = "not_found"


class NotAllowed(DomainError):
    """The person sees the object but lacks the role."""

    code = "not_allowed"


class Invalid(DomainError):
    """Input that cannot be accepted. `extra["fields"]` may map field names to lists of messages."""

    code = "invalid"


class Conflict(DomainError):
    """The request does not fit the state of the object."""

    code = "conflict"


class StaleWrite(Conflict):
    """Somebody else changed the row first."""

    code = "stale_write"


class IllegalMove(Conflict):
    """The state machine has no such move."""

    code = "illegal_move"


class AlreadyAnswered(Conflict):
    """The decision has been approved, rejected, withdrawn or has expired."""

    code = "already_answered"


class Outdated(Conflict):
    """What was asked has changed since: a yes to it would be one to something that nobody was shown."""

    code = "outdated"


class Superseded(Conflict):
    """A newer attempt exists; this one may write nothing more."""

    code = "attempt_superseded"


class LimitReached(DomainError):
    """A limit of the team, the job or a rule would be passed."""

    code = "limit_reached"


class StorageFull(DomainError):
    """The disk of the server has no room for what was sent."""

    code = "storage_full"
