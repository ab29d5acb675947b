"""What-ifs: numbers under the names of `manage.py replay`, progress, result."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from jobs.replay_numbers import DEFAULTS, LIMITS, MAX_POLICIES, OPTIONAL
from jobs.services.whatif_traces import MAX_BYTES
from webapp.api.shapes.fields import Input, Named, PersonField, StatefulShape


def _number(name: str) -> serializers.Field[Any, Any, Any, Any]:
    """A field with the limits and the default of a number."""
    low, high, is_whole = LIMITS[name]
    more = {"required": False, "default": DEFAULTS[name], "allow_null": name in OPTIONAL}
    if is_whole:
        return serializers.IntegerField(min_value=int(low), max_value=int(high), **more)
    return serializers.FloatField(min_value=low, max_value=high, **more)


class NumbersInput(Input):
    """The job and the windows. Prices are USD per GPU-hour unless `price_per` is slot."""

    gang = serializers.BooleanField(default=False, help_text="All or nothing: sizes 0 and n_max")
    sizes = serializers.CharField(max_length=100, required=False, allow_null=True, default=None, help_text="2,4,8,16")
    price_per = serializers.ChoiceField(["hour", "slot"], default="hour")
    own_prices = serializers.BooleanField(default=True, help_text="Take the trace's own prices where it has any")

    def get_fields(self) -> dict[str, Any]:
        return super().get_fields() | {name: _number(name) for name in LIMITS}


class GeneratedInput(Input):
    zone = serializers.CharField(max_length=64)
    days = serializers.FloatField(min_value=1, max_value=90, default=30)
    seed = serializers.IntegerField(min_value=0, max_value=2**31 - 1, default=1)


class WhatIfNew(Input):
    """Exactly one of `offer`, `trace` and `generated` says which market."""

    team = serializers.UUIDField(required=False)
    job = serializers.UUIDField(
        required=False, help_text="The job whose question it is; its numbers are not taken over"
    )
    name = serializers.CharField(max_length=120, required=False, default="", allow_blank=True)
    offer = serializers.UUIDField(required=False)
    trace = serializers.CharField(
        max_length=MAX_BYTES, required=False, help_text="The text of a file that an importer reads"
    )
    trace_name = serializers.CharField(max_length=100, required=False, default="trace")
    trace_key = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    prices = serializers.CharField(
        max_length=MAX_BYTES, required=False, help_text="The text of a second file with prices"
    )
    trace_columns = serializers.CharField(
        max_length=300,
        required=False,
        default="",
        allow_blank=True,
        help_text="For a CSV of any shape: at=TIME,availability=COUNT,price=COST,currency==USD (== is a constant)",
    )
    prices_key = serializers.CharField(max_length=200, required=False, default="", allow_blank=True)
    generated = GeneratedInput(required=False)
    numbers = NumbersInput(required=False)
    policies = serializers.ListField(child=serializers.CharField(max_length=60), min_length=1, max_length=MAX_POLICIES)

    def validate(self, data: dict[str, Any]) -> dict[str, Any]:
        named = [name for name in ("offer", "trace", "generated") if name in data]
        if len(named) != 1:
            raise serializers.ValidationError({"trace": ["Give exactly one of offer, trace and generated."]})
        return data


class WhatIfShape(StatefulShape):
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    name = serializers.CharField()
    created_by = PersonField(read_only=True, allow_null=True)
    job = Named(read_only=True, allow_null=True)
    source = serializers.CharField(help_text="offer, upload or generated")  # type: ignore[assignment]
    offer = serializers.UUIDField(source="offer.uuid", read_only=True, allow_null=True, default=None)
    trace_name = serializers.CharField()
    notes = serializers.ListField(child=serializers.CharField())
    numbers = serializers.SerializerMethodField()
    policies = serializers.ListField(child=serializers.CharField())
    num_done = serializers.IntegerField(help_text="Parts done")
    num_parts = serializers.IntegerField(help_text="Parts in all, 0 before it is known")
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField()

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_numbers(self, row: Any) -> Any:
        return row.numbers
