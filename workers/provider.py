"""What every provider of machines does. Every call may be repeated; a machine is known by the token it was asked for with."""

from __future__ import annotations

from typing import Any, Protocol

from trainer_client.backends import BackendError

# Plain values: token, id, offer (region, zone, is_spot), tags, status (pending, running, stopping, terminated), created_at,
# started_at, ended_at, notice_at, ends_by (unix seconds or None), prices (as `Instance.prices`; None: those quoted for its
# offer), unusable (why no trainer can ever run on it; empty or absent where one can).
Record = dict[str, Any]


class NoCapacity(BackendError):
    """There is none of this offer to be had at the moment."""


class ListedInPart(BackendError):
    """A part of the provider did not answer. `records`: what the rest listed; nothing follows for a machine that is not there."""

    def __init__(self, message: str, records: list[Record]) -> None:
        super().__init__(message)
        self.records = records


class Provider(Protocol):
    """`BackendError` where the provider does not answer or says no."""

    def create(
        self, token: str, *, region: str, zone: str, instance_type: str, is_spot: bool, tags: dict[str, str]
    ) -> Record:
        """A machine for `token`, however often it is asked. `NoCapacity` where there is none; permanent errors need a person."""
        ...

    def describe(self, token: str) -> Record | None:
        """The machine, or None if the provider knows nothing of it (or not yet)."""
        ...

    def terminate(self, token: str) -> Record | None:
        """Begin the end; the record says when it is over. None as for `describe`."""
        ...

    def machines(self, tag: str) -> list[Record]:
        """Machines with the tag `key=value`, those that ended lately among them. A young one may be missing.

        `ListedInPart` where not all of the provider answers.
        """
        ...

    def attach(self, token: str, *, folder: str, rank: int) -> None:
        """Rank `rank` of the launch in `folder` runs on this machine. A permanent error: the machine is no more."""
        ...
