"""Who is asking: a bearer token `cf_…` of a person, or the ingest token of one attempt. Browsers use the session."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.models import AnonymousUser
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from jobs.access import Viewer
from jobs.models import ApiToken
from jobs.services.tokens import token_find

SCHEMES = ("bearer", "token")


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer cf_…` (or `Token cf_…`).

    It answers before the session does, so a program that also sends a stale session cookie is never asked for a CSRF token.
    """

    def authenticate(self, request: Request) -> tuple[Any, ApiToken] | None:
        scheme, _, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() not in SCHEMES:
            return None
        token = token_find(secret=secret.strip(), now=timezone.now())
        if token is None:
            raise AuthenticationFailed("This token is unknown, has expired or was revoked.", code="bad_token")
        return token.user or AnonymousUser(), token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="counterflow"'


class TokenScheme(OpenApiAuthenticationExtension):
    """How the schema describes the above."""

    target_class = "webapp.api.auth.TokenAuthentication"
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "bearerFormat": "cf_…"}


class IsPerson(BasePermission):
    """A signed-in person, or a token that belongs to one."""

    message = "This token belongs to a training attempt; it can report and nothing else."

    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(request.user and request.user.is_authenticated)


class MayIngest(BasePermission):
    """Any token with the scope `ingest`; whether it fits the object is checked by the view."""

    message = "This needs a token with the scope ingest."

    def has_permission(self, request: Request, view: Any) -> bool:
        return isinstance(request.auth, ApiToken) and "ingest" in request.auth.scopes


def viewer_of(request: Request) -> Viewer:
    """The person behind a request, narrowed by their token."""
    return Viewer(request.user, request.auth if isinstance(request.auth, ApiToken) else None)
