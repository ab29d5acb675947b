"""Whether those who watch may still watch: session, account and membership, looked up for many sockets at once."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.utils.crypto import constant_time_compare

from jobs.access import Viewer, fetch
from jobs.errors import DomainError
from jobs.models import Job, Member, Team


@dataclass(frozen=True)
class Pass:
    """By what right a socket is open."""

    session_key: str
    user_id: int
    team_id: int


def rooms_of(user: Any, session_key: str, kind: str, public_id: uuid.UUID) -> tuple[Pass, Job | Team] | None:
    """The pass for a job or a team, through the one door; None where the user may not watch it or it does not exist."""
    rows: Any = Job.objects.select_related("team") if kind == "job" else Team.objects.all()
    try:
        row = fetch(Viewer(user), rows, public_id)
    except DomainError:
        return None
    if not session_key:
        return None
    team_id = row.team_id if isinstance(row, Job) else row.pk
    return Pass(session_key, user.pk, team_id), row


def passes_valid(passes: Iterable[Pass], now: dt.datetime) -> set[Pass]:
    """Those of `passes` that still hold. Three queries, however many there are."""
    asked = set(passes)
    if not asked:
        return set()
    sessions = Session.objects.filter(session_key__in={p.session_key for p in asked}, expire_date__gt=now)
    content = {s.session_key: SessionStore().decode(s.session_data) for s in sessions}
    users = {u.pk: u for u in get_user_model().objects.filter(pk__in={p.user_id for p in asked}, is_active=True)}
    members = set(
        Member.objects.filter(user__in=users, team__in={p.team_id for p in asked}).values_list("user_id", "team_id")
    )
    return {
        p
        for p in asked
        if (p.user_id, p.team_id) in members and _signed_in(content.get(p.session_key), users[p.user_id])
    }


def _signed_in(session: dict[str, Any] | None, user: Any) -> bool:
    """Whether the session is this user's, and not from before a change of the password."""
    if not session or str(session.get(SESSION_KEY)) != str(user.pk) or BACKEND_SESSION_KEY not in session:
        return False
    return constant_time_compare(session.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())
