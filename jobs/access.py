"""The one door to objects: API, pages and sockets fetch through it, so team and role are checked in one place.

A stranger gets `NotFound`; a member without the role gets `NotAllowed`. A token narrows a person by its scopes.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from django.db.models import Model, QuerySet

from jobs import models as m
from jobs.errors import NotAllowed, NotFound
from jobs.models.teams import ROLES

if TYPE_CHECKING:
    from django.contrib.auth.models import AnonymousUser, User

M = TypeVar("M", bound=Model)

ROLE_OF_SCOPE = {"read": "viewer", "operate": "operator", "approve": "approver", "admin": "admin"}

# How each model finds its team.
TEAM_PATH: dict[type[Model], str] = {
    m.Team: "pk",
    m.Member: "team",
    m.ApiToken: "team",
    m.Dataset: "team",
    m.Upload: "team",
    m.Shard: "dataset__team",
    m.ShardRevision: "shard__dataset__team",
    m.Job: "team",
    m.Attempt: "job__team",
    m.Worker: "attempt__job__team",
    m.Snapshot: "job__team",
    m.Instance: "team",
    m.Decision: "team",
    m.Rule: "team",
    m.Command: "job__team",
    m.Directive: "attempt__job__team",
    m.Augmentation: "job__team",
    m.Event: "team",
    m.WhatIf: "team",
    m.NotificationTarget: "team",
    m.Notification: "target__team",
}

# What belongs to no team: every member of any team may see it.
SHARED: frozenset[type[Model]] = frozenset({m.Offer, m.FeedState, m.QuarantinedQuote})


@dataclass(frozen=True)
class Viewer:
    """A person as the door sees them: the user, and the token they came with (None for a browser session)."""

    user: User | AnonymousUser
    token: m.ApiToken | None = None

    def roles(self) -> dict[int, str]:
        """Team id -> role, after the token's narrowing."""
        if not self.user.is_authenticated:
            return {}
        held = dict(m.Member.objects.filter(user=self.user).values_list("team_id", "role"))
        if self.token is None:
            return held
        if self.token.team_id not in held:
            return {}
        scopes = [ROLE_OF_SCOPE[s] for s in self.token.scopes if s in ROLE_OF_SCOPE]
        if not scopes:
            return {}
        cap = max(scopes, key=ROLES.index)
        return {self.token.team_id: min(cap, held[self.token.team_id], key=ROLES.index)}


def role_reaches(role: str | None, needed: str) -> bool:
    """Whether `role` may do what `needed` may."""
    return role is not None and ROLES.index(role) >= ROLES.index(needed)


def visible(viewer: Viewer, queryset: QuerySet[M]) -> QuerySet[M]:
    """The rows of `queryset` that belong to the viewer's teams; shared rows for anybody who is in a team."""
    if queryset.model in SHARED:
        return queryset if viewer.roles() else queryset.none()
    path = TEAM_PATH[queryset.model]
    return queryset.filter(**{f"{path}__in": list(viewer.roles())})


def fetch(viewer: Viewer, queryset: QuerySet[M], public_id: str | uuid.UUID, *, role: str = "viewer") -> M:
    """The row named `public_id`, if the viewer may see it and holds `role` in its team.

    Raises `NotFound` to strangers and for malformed ids, `NotAllowed` to members without the role.
    """
    row = by_uuid(visible(viewer, queryset), public_id)
    if queryset.model in SHARED:
        need_anywhere(viewer, role)
        return row
    need(viewer, team_id_of(row), role)
    return row


def by_uuid(queryset: QuerySet[M], public_id: str | uuid.UUID) -> M:
    """The row of that name whoever asks: only for callers that check a token of their own kind. Raises `NotFound`."""
    word = queryset.model._meta.verbose_name
    try:
        key = public_id if isinstance(public_id, uuid.UUID) else uuid.UUID(str(public_id))
    except ValueError:
        raise NotFound(f"No such {word}.") from None
    row = queryset.filter(uuid=key).first()
    if row is None:
        raise NotFound(f"No such {word}.")
    return row


def need(viewer: Viewer, team_id: int, role: str) -> None:
    """Raise `NotFound` for strangers of the team, `NotAllowed` for members below `role`."""
    held = viewer.roles().get(team_id)
    if held is None:
        raise NotFound("No such team.")
    if not role_reaches(held, role):
        raise NotAllowed(f"This needs the role {role}; yours is {held}.", needed=role, held=held)


def need_anywhere(viewer: Viewer, role: str) -> None:
    """Raise `NotAllowed` unless the viewer holds `role` in some team: for what all teams share."""
    held = max(viewer.roles().values(), key=ROLES.index, default=None)
    if not role_reaches(held, role):
        raise NotAllowed(f"This needs the role {role}; yours is {held}.", needed=role, held=held)


def team_id_of(row: Any) -> int:
    """The id of the team that owns a row."""
    if isinstance(row, m.Team):
        return row.pk
    for step in TEAM_PATH[type(row)].split("__")[:-1]:
        row = getattr(row, step)
    return int(row.team_id)
