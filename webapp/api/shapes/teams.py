"""Teams, members, tokens."""

from __future__ import annotations

from decimal import Decimal

from rest_framework import serializers

from jobs.models import ROLES, SCOPES
from webapp.api.shapes.fields import Input, InstantField, PersonField, RowShape


class TeamShape(RowShape):
    name = serializers.CharField()
    slug = serializers.CharField()
    time_zone = serializers.CharField(help_text="IANA name")
    two_person = serializers.BooleanField(help_text="Costly decisions need two approvers")
    two_person_from_usd = serializers.DecimalField(
        max_digits=12, decimal_places=2, help_text="What costs at least this is costly"
    )
    forbid_own_approval = serializers.BooleanField()
    max_gpus = serializers.IntegerField(
        allow_null=True, help_text="GPUs that the jobs of the team may hold together, in every backend; null: no limit"
    )


class TeamNew(Input):
    name = serializers.CharField(max_length=80)
    time_zone = serializers.CharField(max_length=64, default="UTC")


class TeamChange(Input):
    name = serializers.CharField(max_length=80, required=False)
    time_zone = serializers.CharField(max_length=64, required=False)
    two_person = serializers.BooleanField(required=False)
    two_person_from_usd = serializers.DecimalField(
        max_digits=12, decimal_places=2, min_value=Decimal(0), required=False
    )
    forbid_own_approval = serializers.BooleanField(required=False)
    max_gpus = serializers.IntegerField(min_value=0, max_value=1_000_000, allow_null=True, required=False)


class MemberShape(RowShape):
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    user = PersonField(read_only=True)
    role = serializers.CharField(help_text=f"One of {', '.join(ROLES)}")


class MemberNew(Input):
    team = serializers.UUIDField(required=False)
    email = serializers.EmailField(max_length=254, help_text="Address of somebody who has an account here")
    role = serializers.CharField(max_length=16, help_text=f"One of {', '.join(ROLES)}")


class TokenShape(RowShape):
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    user = PersonField(read_only=True, allow_null=True)
    name = serializers.CharField()
    prefix = serializers.CharField(help_text="First characters of the token")
    scopes = serializers.ListField(child=serializers.CharField())
    expires_at = serializers.DateTimeField(allow_null=True)
    revoked_at = serializers.DateTimeField(allow_null=True)
    last_used_at = serializers.DateTimeField(allow_null=True)


class TokenMade(TokenShape):
    token = serializers.CharField(help_text="Shown this once; it is stored as a hash")


class TokenNew(Input):
    team = serializers.UUIDField(required=False)
    name = serializers.CharField(max_length=80)
    scopes = serializers.ListField(child=serializers.CharField(max_length=16), max_length=len(SCOPES))
    expires_at = InstantField(required=False, allow_null=True)
