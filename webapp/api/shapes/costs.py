"""The ledger as JSON. Money is text."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.utils import timezone
from rest_framework import serializers

from webapp.api.shapes.fields import Input, InstantField, Named

MAX_DAYS = 400


class PeriodInput(Input):
    team = serializers.UUIDField(required=False, help_text="Needed by who has several")
    start = InstantField(required=False, help_text="Thirty days before `end` without one")
    end = InstantField(required=False, help_text="Now without one; later than now is now")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        now = timezone.now()
        attrs["end"] = min(attrs.get("end") or now, now)
        attrs["start"] = attrs.get("start") or attrs["end"] - dt.timedelta(days=30)
        if not attrs["start"] < attrs["end"] <= attrs["start"] + dt.timedelta(days=MAX_DAYS):
            raise serializers.ValidationError({"start": [f"Before `end`, and at most {MAX_DAYS} days."]})
        return attrs


class MoneyField(serializers.DecimalField):
    """USD to a hundredth of a cent, as text."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(max_digits=20, decimal_places=4, **kwargs)


class SumsShape(serializers.Serializer[Any]):
    total_usd = MoneyField(source="total")
    spot_usd = MoneyField(source="by_kind.spot")
    on_demand_usd = MoneyField(source="by_kind.on_demand")
    work_usd = MoneyField(source="by_part.work")
    starting_usd = MoneyField(source="by_part.starting", help_text="Before the process group stood")
    lost_usd = MoneyField(source="by_part.lost", help_text="Steps that a later attempt did again")
    idle_usd = MoneyField(source="by_part.idle", help_text="After the attempt had ended")


class DayCosts(SumsShape):
    day = serializers.DateField(help_text="Of the team's clock")


class JobCosts(SumsShape):
    job = Named(allow_null=True)
    gpu_hours = serializers.FloatField()
    budget_usd = serializers.DecimalField(source="job.budget_usd", max_digits=12, decimal_places=2, allow_null=True)


class LedgerShape(serializers.Serializer[Any]):
    start = serializers.DateTimeField()
    end = serializers.DateTimeField()
    sums = SumsShape()
    days = DayCosts(many=True)
    jobs = JobCosts(many=True)
