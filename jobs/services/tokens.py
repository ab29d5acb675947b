"""Tokens: shown once, stored as a digest, scoped, expiring, rotated, revoked."""

from __future__ import annotations

import datetime as dt
import hashlib
import secrets
from typing import TYPE_CHECKING

from django.db import transaction

from jobs.errors import Invalid
from jobs.models import SCOPES, ApiToken, Attempt, Team
from jobs.services.events import SYSTEM, Actor, event_append

if TYPE_CHECKING:
    from django.contrib.auth.models import User

USE_RESOLUTION = dt.timedelta(minutes=1)  # last_used_at is written at most this often


def token_digest(secret: str) -> str:
    """SHA-256, hexadecimal. Tokens carry 256 random bits, so a plain hash is enough."""
    return hashlib.sha256(secret.encode()).hexdigest()


@transaction.atomic
def token_create(
    *,
    team: Team,
    name: str,
    scopes: list[str],
    now: dt.datetime,
    user: User | None = None,
    attempt: Attempt | None = None,
    expires_at: dt.datetime | None = None,
    actor: Actor = SYSTEM,
) -> tuple[ApiToken, str]:
    """A new token and its secret `cf_…`, which exists nowhere afterwards."""
    if bad := sorted(set(scopes) - set(SCOPES)):
        raise Invalid(f"Unknown scopes: {', '.join(bad)}.", fields={"scopes": [f"One of {', '.join(SCOPES)}."]})
    if not scopes:
        raise Invalid("A token needs at least one scope.", fields={"scopes": ["Choose at least one."]})
    if expires_at is not None and expires_at <= now:
        raise Invalid("The token would have expired already.", fields={"expires_at": ["Choose a later time."]})
    secret = "cf_" + secrets.token_urlsafe(32)
    token = ApiToken.objects.create(
        team=team,
        user=user,
        attempt=attempt,
        name=name,
        prefix=secret[:8],
        digest=token_digest(secret),
        scopes=scopes,
        expires_at=expires_at,
        created_at=now,
    )
    event_append(team=team, kind="token.created", subject=token, now=now, actor=actor, text=f"Token {name} created.")
    return token, secret


@transaction.atomic
def token_rotate(*, token: ApiToken, now: dt.datetime, actor: Actor) -> tuple[ApiToken, str]:
    """A successor with the same rights; the old one ends at once."""
    fresh = token_create(
        team=token.team,
        name=token.name,
        scopes=token.scopes,
        now=now,
        user=token.user,
        attempt=token.attempt,
        expires_at=token.expires_at,
        actor=actor,
    )
    token_revoke(token=token, now=now, actor=actor)
    return fresh


@transaction.atomic
def token_revoke(*, token: ApiToken, now: dt.datetime, actor: Actor = SYSTEM) -> None:
    """End a token. Harmless to repeat."""
    if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now):
        token.revoked_at = now
        event_append(
            team=token.team,
            kind="token.revoked",
            subject=token,
            now=now,
            actor=actor,
            text=f"Token {token.name} revoked.",
        )


def token_find(*, secret: str, now: dt.datetime) -> ApiToken | None:
    """The living token behind a secret, with its user and attempt, or None. Notes its use."""
    token = (
        ApiToken.objects.select_related("user", "team", "attempt", "attempt__job", "attempt__job__team")
        .filter(digest=token_digest(secret), revoked_at=None)
        .first()
    )
    if token is None or (token.expires_at is not None and token.expires_at <= now):
        return None
    if token.user is not None and not token.user.is_active:
        return None
    if token.last_used_at is None or now - token.last_used_at > USE_RESOLUTION:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)
    return token
