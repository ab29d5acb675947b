"""Append to the history, and say so after commit."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from django.db import transaction

from jobs.models import Event, Job, Team
from jobs.models.base import PublicModel
from jobs.signals import changed

if TYPE_CHECKING:
    from django.contrib.auth.models import User


class Actor:
    """Who does something: a person, a rule, the trainer or the system."""

    def __init__(self, label: str, user: User | None = None) -> None:
        self.label = label
        self.user = user

    @classmethod
    def person(cls, user: User) -> Actor:
        return cls(user.email or user.get_username(), user)

    @classmethod
    def rule(cls, name: str) -> Actor:
        return cls(f"rule:{name}")


SYSTEM = Actor("system")
TRAINER = Actor("trainer")


def event_append(
    *,
    team: Team,
    kind: str,
    subject: PublicModel,
    now: dt.datetime,
    actor: Actor = SYSTEM,
    job: Job | None = None,
    text: str = "",
    data: dict[str, Any] | None = None,
) -> Event:
    """Write one event in the caller's transaction; `changed` is sent after commit, failures of receivers are logged."""
    event = event_made(team=team, job=job, kind=kind, subject=subject, now=now, actor=actor, text=text, data=data)
    event.save(force_insert=True)
    _notify(event)
    return event


def events_append(events: list[Event]) -> None:
    """Write many in the caller's transaction, in one statement; each is told of as by `event_append`."""
    for event in Event.objects.bulk_create(events):
        _notify(event)


def event_made(
    *,
    team: Team,
    kind: str,
    subject: PublicModel,
    now: dt.datetime,
    actor: Actor = SYSTEM,
    job: Job | None = None,
    text: str = "",
    data: dict[str, Any] | None = None,
) -> Event:
    """An event that is not written yet."""
    return Event(
        team=team,
        job=job,
        at=now,
        kind=kind,
        subject_type=type(subject).__name__,
        subject_uuid=subject.uuid,
        user=actor.user,
        actor=actor.label,
        text=text,
        data=data or {},
    )


def _notify(event: Event) -> None:
    notice = {
        "team_id": event.team_id,
        "job_id": event.job_id,
        "kind": event.kind,
        "subject_type": event.subject_type,
        "subject_uuid": str(event.subject_uuid),
        "event_id": event.pk,
    }
    transaction.on_commit(lambda: changed.send_robust(sender=Event, **notice), robust=True)
