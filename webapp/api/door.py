"""What every view of the API shares: rows through the one door, UUIDs outside, repeats of a POST answered once."""

from __future__ import annotations

import datetime as dt
import functools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from django.db.models import Model, QuerySet
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.mixins import ListModelMixin, RetrieveModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from jobs.access import Viewer, fetch, need, visible
from jobs.models import Team
from jobs.services.events import Actor
from jobs.services.idempotency import KeyUsedOtherwise, idempotent_answer, request_digest
from webapp.api.auth import viewer_of
from webapp.api.problems import KeyReused
from webapp.api.strict import StrictJSONRenderer

if TYPE_CHECKING:
    from django.contrib.auth.models import User

M = TypeVar("M", bound=Model)
KEY_HEADER = "Idempotency-Key"
MAX_KEY_CHARS = 200


class Door(GenericViewSet[Any]):
    """Rows of one model, of the viewer's teams only, named by UUID. `queryset` says what is read with each row."""

    lookup_field = "uuid"
    lookup_url_kwarg = "id"
    lookup_value_converter = "str"
    queryset: QuerySet[Any]

    @property
    def viewer(self) -> Viewer:
        return viewer_of(self.request)

    @property
    def person(self) -> User:
        """Who asks; every door but those for tokens of attempts is for persons only."""
        return cast("User", self.request.user)

    @property
    def actor(self) -> Actor:
        return Actor.person(self.person)

    @property
    def now(self) -> dt.datetime:
        return timezone.now()

    def get_queryset(self) -> QuerySet[Any]:
        if getattr(self, "swagger_fake_view", False):
            return self.queryset.none()
        return visible(self.viewer, self.queryset)

    def get_object(self) -> Any:
        return self.row()

    def row(self, role: str = "viewer") -> Any:
        """The row that the address names, if the viewer may do what `role` may."""
        return fetch(self.viewer, self.queryset, self.kwargs["id"], role=role)

    def other(self, queryset: QuerySet[M], public_id: Any, *, role: str = "viewer") -> M:
        """Another row, named in the body or the query."""
        return fetch(self.viewer, queryset, public_id, role=role)

    def body(self, shape: type[Any], **kwargs: Any) -> dict[str, Any]:
        """The checked body of the request."""
        serializer = shape(data=self.request.data, **kwargs)
        serializer.is_valid(raise_exception=True)
        return dict(serializer.validated_data)

    def team(self, public_id: Any = None, *, role: str = "viewer") -> Team:
        """The team named in the body, or the only one that the viewer has."""
        if public_id:
            return fetch(self.viewer, Team.objects.all(), public_id, role=role)
        teams = list(Team.objects.filter(pk__in=list(self.viewer.roles()))[:2])
        if len(teams) != 1:
            raise ValidationError({"team": ["Name the team: you have " + ("none." if not teams else "several.")]})
        need(self.viewer, teams[0].pk, role)
        return teams[0]

    def listed(self, rows: QuerySet[Any], shape: type[Any]) -> Response:
        """A page of rows that do not come from `queryset`."""
        page = self.paginate_queryset(rows)
        return self.get_paginated_response(shape(page, many=True).data)


class ReadDoor(ListModelMixin, RetrieveModelMixin, Door):
    """A door that lists and shows."""


V = TypeVar("V", bound=Callable[..., Any])
KEY_PARAMETER = OpenApiParameter(
    KEY_HEADER,
    str,
    OpenApiParameter.HEADER,
    description="Any text of up to 200 characters. A repeat with the same key and body gets the first answer and does nothing "
    "again; with another body it is refused with 422. Kept for 48 hours.",
)


def idempotent(view: V) -> V:
    """Honour `Idempotency-Key`: the view's work and the key are one transaction. Without the header nothing changes."""

    @functools.wraps(view)
    def inner(self: Any, request: Request, *args: Any, **kwargs: Any) -> Response | HttpResponse:
        key = request.headers.get(KEY_HEADER, "")
        if not key:
            return view(self, request, *args, **kwargs)
        if len(key) > MAX_KEY_CHARS or not key.isprintable():
            raise ValidationError({KEY_HEADER: [f"Up to {MAX_KEY_CHARS} printable characters."]})
        canonical = json.dumps(request.data, sort_keys=True, separators=(",", ":"), default=str)
        digest = request_digest(request.method or "", request.get_full_path(), canonical)

        def work() -> tuple[int, str]:
            response = view(self, request, *args, **kwargs)
            return response.status_code, StrictJSONRenderer().render(response.data).decode()

        try:
            answer = idempotent_answer(user=request.user, key=key, digest=digest, now=timezone.now(), work=work)  # type: ignore[arg-type]
        except KeyUsedOtherwise:
            raise KeyReused from None
        reply = HttpResponse(answer.body, status=answer.status_code, content_type="application/json")
        if answer.replayed:
            reply["Idempotency-Replayed"] = "true"
        return reply

    return extend_schema(parameters=[KEY_PARAMETER])(inner)  # type: ignore[return-value]
