"""Teams, members and tokens."""

from __future__ import annotations

from django.contrib.auth import get_user_model
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.access import need
from jobs.errors import Conflict, NotAllowed, NotFound
from jobs.models import ApiToken, Member, Team
from jobs.selectors.money_told import team_money_told
from jobs.services.teams import member_add, member_remove, team_change, team_create
from jobs.services.times import zone_named
from jobs.services.tokens import token_create, token_revoke, token_rotate
from webapp.api.door import ReadDoor, idempotent
from webapp.api.shapes import teams as shape
from webapp.api.shapes.fields import Nothing


class Teams(ReadDoor):
    """Teams of the viewer."""

    queryset = Team.objects.order_by("name", "id")
    serializer_class = shape.TeamShape

    @extend_schema(request=shape.TeamNew, responses={201: shape.TeamShape})
    @idempotent
    def create(self, request: Request) -> Response:
        """A new team, with you as its admin."""
        data = self.body(shape.TeamNew)
        if self.viewer.token is not None:
            raise NotAllowed("A token belongs to one team and cannot make another; sign in to do that.")
        zone_named(data["time_zone"])
        team = team_create(admin=self.person, now=self.now, **data)
        return Response(shape.TeamShape(team).data, status=201)

    @extend_schema(request=shape.TeamChange, responses=shape.TeamShape)
    def partial_update(self, request: Request, id: str) -> Response:
        """Change the name, the clock, who has to approve, the quota or the budget. Admins only."""
        team = team_change(team=self.row("admin"), now=self.now, actor=self.actor, **self.body(shape.TeamChange))
        return Response(shape.TeamShape(team).data)

    @extend_schema(responses=shape.MonthShape, filters=False)
    @action(detail=True, methods=["get"])
    def month(self, request: Request, id: str) -> Response:
        """What the team has spent this month, what is kept for what runs, what is left, and where it will end."""
        return Response(shape.MonthShape(team_money_told(team=self.row(), now=self.now)).data)


class MemberFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")
    role = filters.CharFilter()


class Members(ReadDoor):
    """Who is in a team, and what they may do."""

    queryset = Member.objects.select_related("team", "user").order_by("id")
    serializer_class = shape.MemberShape
    filterset_class = MemberFilter

    @extend_schema(request=shape.MemberNew, responses={201: shape.MemberShape})
    def create(self, request: Request) -> Response:
        """Add a person by their address, or change the role of one who is in. Admins only."""
        data = self.body(shape.MemberNew)
        team = self.team(data.get("team"), role="admin")
        user = get_user_model().objects.filter(email__iexact=data["email"], is_active=True).first()
        if user is None:
            raise NotFound("Nobody with this address has an account here; they have to open one first.")
        member = member_add(team=team, user=user, role=data["role"], now=self.now, actor=self.actor)
        return Response(shape.MemberShape(member).data, status=201)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, id: str) -> Response:
        """Take a person out of the team. Admins only."""
        member_remove(member=self.row("admin"), now=self.now, actor=self.actor)
        return Response(status=204)


class TokenFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")
    living = filters.BooleanFilter("revoked_at", lookup_expr="isnull", help_text="Not revoked")


class Tokens(ReadDoor):
    """Tokens of people. Admins see those of everybody, others their own."""

    queryset = ApiToken.objects.filter(attempt=None).select_related("team", "user").order_by("-id")
    serializer_class = shape.TokenShape
    filterset_class = TokenFilter

    def get_queryset(self):  # type: ignore[no-untyped-def]
        rows = super().get_queryset()
        if getattr(self, "swagger_fake_view", False):
            return rows
        managed = [team for team, role in self.viewer.roles().items() if role == "admin"]
        return rows.filter(team__in=managed) | rows.filter(user=self.person)

    def mine(self) -> ApiToken:
        """The token that the address names, if it is the viewer's own or they are an admin."""
        token = self.row()
        if token.user_id != self.request.user.pk:
            need(self.viewer, token.team_id, "admin")
        return token

    def get_object(self) -> ApiToken:
        return self.mine()

    def covered(self, scopes: list[str]) -> None:
        """A token hands out no right that it does not have itself."""
        if self.viewer.token is not None and not set(scopes) <= set(self.viewer.token.scopes):
            raise NotAllowed("This token cannot give rights that it lacks; sign in to do that.")

    @extend_schema(request=shape.TokenNew, responses={201: shape.TokenMade})
    def create(self, request: Request) -> Response:
        """A token of yours. Its secret is in this answer only and takes no Idempotency-Key: revoke what you lose."""
        data = self.body(shape.TokenNew)
        self.covered(data["scopes"])
        team = self.team(data.pop("team", None))
        token, secret = token_create(team=team, user=self.person, now=self.now, actor=self.actor, **data)
        return Response({**shape.TokenShape(token).data, "token": secret}, status=201)

    @extend_schema(request=Nothing, responses={201: shape.TokenMade})
    @action(detail=True, methods=["post"])
    def rotate(self, request: Request, id: str) -> Response:
        """A successor with the same rights; the old one ends at once. Only its owner may: the secret goes to whoever asks."""
        old = self.mine()
        if old.user_id != request.user.pk:
            raise NotAllowed("Only its owner can rotate a token; you can revoke it.")
        if old.revoked_at is not None:
            raise Conflict("This token was revoked; make a new one.")
        self.covered(old.scopes)
        token, secret = token_rotate(token=old, now=self.now, actor=self.actor)
        return Response({**shape.TokenShape(token).data, "token": secret}, status=201)

    @extend_schema(request=Nothing, responses={200: shape.TokenShape})
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, id: str) -> Response:
        """End a token. Harmless to repeat."""
        token = self.mine()
        token_revoke(token=token, now=self.now, actor=self.actor)
        return Response(shape.TokenShape(token).data)
