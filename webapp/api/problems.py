"""Every error of the API in one form: `application/problem+json` (RFC 9457) with a stable `code`.

Members: type, title, status, detail, code; `fields` (name -> messages) for bad input; what a domain error adds.
"""

from __future__ import annotations

import logging
import math
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import reverse
from django.views import defaults
from rest_framework import exceptions as drf
from rest_framework.response import Response

from jobs import errors as domain

logger = logging.getLogger(__name__)
MEDIA_TYPE = "application/problem+json"

# The narrowest class wins. (status, title)
DOMAIN: dict[type[domain.DomainError], tuple[int, str]] = {
    domain.NotFound: (404, "Not found"),
    domain.NotAllowed: (403, "Not allowed"),
    domain.Invalid: (400, "Invalid input"),
    domain.Conflict: (409, "Conflict"),
    domain.AlreadyAnswered: (409, "Already answered"),
    domain.Outdated: (409, "Not what was asked any more"),
    domain.StaleWrite: (409, "Changed by somebody else"),
    domain.IllegalMove: (409, "Not possible in this state"),
    domain.Superseded: (409, "Attempt superseded"),
    domain.LimitReached: (409, "Limit reached"),
    domain.StorageFull: (507, "No room left"),
    domain.DomainError: (400, "Refused"),
}
DRF: dict[type[drf.APIException], tuple[str, str]] = {
    drf.ValidationError: ("invalid", "Invalid input"),
    drf.ParseError: ("malformed", "Malformed request"),
    drf.AuthenticationFailed: ("bad_token", "Not signed in"),
    drf.NotAuthenticated: ("not_authenticated", "Not signed in"),
    drf.PermissionDenied: ("not_allowed", "Not allowed"),
    drf.NotFound: ("not_found", "Not found"),
    drf.MethodNotAllowed: ("method_not_allowed", "Method not allowed"),
    drf.NotAcceptable: ("not_acceptable", "Not acceptable"),
    drf.UnsupportedMediaType: ("unsupported_media_type", "Unsupported media type"),
    drf.Throttled: ("throttled", "Too many requests"),
}


class TooLarge(drf.APIException):
    status_code = 413
    default_code = "too_large"
    default_detail = "The body is too large."


class KeyReused(drf.APIException):
    status_code = 422
    default_code = "idempotency_key_reused"
    default_detail = "This Idempotency-Key was used for another request."


def exception_handler(exc: Exception, context: dict[str, Any]) -> Response | None:
    """Turn an exception of a view into a problem; None for what is our own fault (Django logs it and answers 500)."""
    if isinstance(exc, domain.DomainError):
        return _domain(exc)
    if isinstance(exc, Http404):
        exc = drf.NotFound()
    elif isinstance(exc, PermissionDenied):
        exc = drf.PermissionDenied(str(exc) or None)
    elif isinstance(exc, RequestDataTooBig):
        exc = TooLarge()
    if isinstance(exc, drf.APIException):
        return _drf(exc)
    if isinstance(exc, OperationalError | InterfaceError):
        logger.warning("the database did not answer in time: %s", exc)
        detail = "The database is busy; nothing was changed. Try again."
        return _answer(problem(503, "busy", "Busy", detail), {"Retry-After": "1"})
    return None


def problem(status: int, code: str, title: str, detail: str, /, **more: Any) -> dict[str, Any]:
    """The body of an error."""
    head = {"type": f"urn:counterflow:problem:{code}", "title": title, "status": status, "detail": detail, "code": code}
    # A domain error may carry `status` (of a row): ours wins, theirs is told as `state`.
    state = {"state": more["status"]} if isinstance(more.get("status"), str) else {}
    return {**head, **{k: v for k, v in more.items() if k not in head}, **state}


def _answer(body: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(body, status=body["status"], headers=headers, content_type=MEDIA_TYPE)


def _domain(exc: domain.DomainError) -> Response:
    status, title = next(DOMAIN[c] for c in type(exc).__mro__ if c in DOMAIN)
    extra = dict(exc.extra)
    if newer := extra.get("newer"):  # the decision that stands in the place of the one that was answered
        extra["newer"] = {**newer, "url": reverse("api_decisions-detail", args=[newer["id"]])}
    return _answer(problem(status, exc.code, title, exc.message, **extra))


def _drf(exc: drf.APIException) -> Response:
    code, title = next((DRF[c] for c in type(exc).__mro__ if c in DRF), (str(exc.default_code), "Refused"))
    headers: dict[str, str] = {}
    more: dict[str, Any] = {}
    detail = _sentence(exc.detail)
    if isinstance(exc, drf.ValidationError):
        more["fields"] = flat(exc.detail)
        detail = "Some fields cannot be accepted: " + ", ".join(sorted(more["fields"])) + "."
    if wait := getattr(exc, "wait", None):
        headers["Retry-After"] = str(math.ceil(wait))
    if auth_header := getattr(exc, "auth_header", None):
        headers["WWW-Authenticate"] = auth_header
    return _answer(problem(exc.status_code, code, title, detail, **more), headers)


def flat(detail: Any, name: str = "") -> dict[str, list[str]]:
    """Nested messages of serializers as dotted names: `{"goal": {"steps": [...]}}` -> `{"goal.steps": [...]}`."""
    if isinstance(detail, dict):
        parts = [flat(v, f"{name}.{k}".strip(".") if k != "non_field_errors" else name) for k, v in detail.items()]
        return {k: v for part in parts for k, v in part.items()}
    if isinstance(detail, list) and any(isinstance(d, dict | list) for d in detail):
        return {k: v for i, d in enumerate(detail) if d for k, v in flat(d, f"{name}.{i}".strip(".")).items()}
    return {name or "body": [str(d) for d in (detail if isinstance(detail, list) else [detail])]}


def _sentence(detail: Any) -> str:
    return (
        str(detail) if not isinstance(detail, dict | list) else "; ".join(m for v in flat(detail).values() for m in v)
    )


def not_found(request: HttpRequest, *args: Any, **kwargs: Any) -> JsonResponse:
    """For addresses below /api/ that do not exist."""
    body = problem(404, "not_found", "Not found", "There is nothing at this address; /api/schema/ lists what there is.")
    return JsonResponse(body, status=404, content_type=MEDIA_TYPE)


def server_error(request: HttpRequest) -> HttpResponse:
    """For our own faults (Django's `handler500`): a problem below /api/, a page elsewhere. The log has the traceback."""
    if not request.path.startswith("/api/"):
        return defaults.server_error(request)
    detail = (
        "Something went wrong on the server and was logged. It is safe to repeat a request with an Idempotency-Key."
    )
    return JsonResponse(problem(500, "server_error", "Server error", detail), status=500, content_type=MEDIA_TYPE)
