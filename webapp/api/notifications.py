"""Where a team is told of events, and the log of what was told."""

from __future__ import annotations

from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.models import Notification, NotificationTarget
from jobs.services.notifications import notification_again, target_create, target_enable, target_remove, target_test
from webapp.api.door import ReadDoor, idempotent
from webapp.api.shapes import notifications as shape
from webapp.api.shapes.fields import Nothing


class TargetFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")


class NotificationTargets(ReadDoor):
    """Targets of the viewer's teams; admins make and remove them."""

    queryset = NotificationTarget.objects.select_related("team").order_by("name", "id")
    serializer_class = shape.TargetShape
    filterset_class = TargetFilter

    @extend_schema(request=shape.TargetNew, responses={201: shape.TargetMade})
    def create(self, request: Request) -> Response:
        """A webhook, or an apprise address. No Idempotency-Key: the secret is in the answer, and the name can be used once."""
        data = self.body(shape.TargetNew)
        team = self.team(data.pop("team", None), role="admin")
        target = target_create(team=team, now=self.now, actor=self.actor, **data)
        return Response(shape.TargetMade(target).data, status=201)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """Stop telling it, now."""
        target_remove(target=self.row("admin"), now=self.now, actor=self.actor)
        return Response(status=204)

    @extend_schema(request=shape.TargetEnabled, responses=shape.TargetShape)
    @action(detail=True, methods=["post"])
    @idempotent
    def enable(self, request: Request, id: str) -> Response:
        """Hold it or go on; what happens while it is held is not told later."""
        target = self.row("admin")
        target_enable(target=target, enabled=self.body(shape.TargetEnabled)["enabled"], now=self.now, actor=self.actor)
        target.refresh_from_db()
        return Response(shape.TargetShape(target).data)

    @extend_schema(request=Nothing, responses={202: shape.NotificationShape})
    @action(detail=True, methods=["post"])
    @idempotent
    def test(self, request: Request, id: str) -> Response:
        """Send a trial event."""
        row = target_test(target=self.row("admin"), user=self.person, now=self.now)
        return Response(shape.NotificationShape(row).data, status=202)


class NotificationFilter(filters.FilterSet):
    target = filters.UUIDFilter("target__uuid")


class Notifications(ReadDoor):
    """The log: every event that was or is to be told, newest first."""

    queryset = Notification.objects.select_related("target", "event").order_by("-id")
    serializer_class = shape.NotificationShape
    filterset_class = NotificationFilter

    @extend_schema(request=Nothing, responses={202: shape.NotificationShape})
    @action(detail=True, methods=["post"])
    @idempotent
    def again(self, request: Request, id: str) -> Response:
        """Try it once more."""
        row = self.row("admin")
        notification_again(notification=row, now=self.now)
        row.refresh_from_db()
        return Response(shape.NotificationShape(row).data, status=202)
