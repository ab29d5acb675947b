"""Teams, members, tokens."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from rest_framework import serializers

from jobs.models import ROLES, SCOPES
from webapp.api.shapes.costs import MoneyField
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
    budget_usd = serializers.DecimalField(
        max_digits=12,
        decimal_places=2,
        allow_null=True,
        help_text="What its machines may cost in a calendar month of its clock; null: no limit",
    )


class MonthShape(serializers.Serializer[Any]):
    """A team's money in the month of now. Money is text; `budget_usd`, `left_usd` are null without a budget."""

    month = serializers.CharField(source="month.name", help_text="As 2026-11, of the team's clock")
    start = serializers.DateTimeField(source="month.start")
    end = serializers.DateTimeField(source="month.end")
    budget_usd = MoneyField(allow_null=True)
    spent_usd = MoneyField()
    reserved_usd = MoneyField(
        help_text="Kept for what runs and for what is asked for: its first minutes and its leaving"
    )
    left_usd = MoneyField(allow_null=True)
    usd_per_hour = MoneyField(help_text="Of what runs and of what is asked for")
    forecast_usd = MoneyField(
        help_text="At the end of the month, if each job ends when it is expected to and none is added"
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
    budget_usd = serializers.DecimalField(
        max_digits=12, decimal_places=2, min_value=Decimal(0), allow_null=True, required=False
    )


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
