"""Reads about a team's people and tokens."""

from __future__ import annotations

import datetime as dt

from django.db.models import Case, F, Q, QuerySet, When

from jobs.models import ROLES, ApiToken, Member, Team


def members_listed(*, team: Team) -> QuerySet[Member]:
    """Members with their users, the most powerful first."""
    rank = Case(*[When(role=role, then=number) for number, role in enumerate(ROLES)])
    return Member.objects.filter(team=team).select_related("user").annotate(rank=rank).order_by("-rank", "user__email")


def tokens_listed(*, team: Team, now: dt.datetime, everything: bool = False) -> QuerySet[ApiToken]:
    """Tokens of people and services (not of attempts): the living ones, or all."""
    rows = ApiToken.objects.filter(team=team, attempt=None).select_related("user")
    if not everything:
        rows = rows.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None)
    return rows.order_by(F("revoked_at").asc(nulls_first=True), "-id")
