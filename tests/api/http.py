"""Small ways to call the API in tests: as a person with a token, as a browser, and over real HTTP."""

from __future__ import annotations

import json
from typing import Any

from django.contrib.auth.models import User
from django.utils import timezone
from rest_framework.test import APIClient

from jobs.models import Team
from jobs.services.tokens import token_create


def make_token(team: Team, user: User, *scopes: str) -> str:
    """The secret of a fresh token; all scopes of a person if none is named."""
    return token_create(
        team=team, user=user, name="test", scopes=list(scopes or ("read", "operate", "approve", "admin")), now=timezone.now()
    )[1]  # fmt: skip


def client_for(team: Team, user: User, *scopes: str) -> APIClient:
    """A program that carries a token of `user`."""
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {make_token(team, user, *scopes)}")
    return client


def strict(response: Any) -> Any:
    """The body of a response, which must be strict JSON."""

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} in the body")

    return json.loads(response.content, parse_constant=refuse)
