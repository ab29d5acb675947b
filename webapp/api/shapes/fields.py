"""Fields that several shapes use."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.utils.dateparse import parse_datetime
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

EXAMPLE = "2026-12-01T10:00:00+01:00"


@extend_schema_field(OpenApiTypes.DATETIME)
class InstantField(serializers.Field[dt.datetime, str, str, Any]):
    """A moment: with its zone on the way in, UTC on the way out. A local time without a zone is refused, never guessed."""

    default_error_messages = {
        "form": f"Write a time as {EXAMPLE}.",
        "naive": f"Say in which zone: {EXAMPLE} or 2026-12-01T09:00:00Z.",
        "far": "Between the years 2000 and 2200.",
    }

    def to_internal_value(self, data: Any) -> dt.datetime:
        try:
            moment = parse_datetime(data) if isinstance(data, str) else None
        except ValueError:
            moment = None
        if moment is None:
            self.fail("form")
        if moment.tzinfo is None:
            self.fail("naive")
        if not 2000 < moment.year < 2200:
            self.fail("far")
        return moment.astimezone(dt.UTC)

    def to_representation(self, value: dt.datetime) -> str:
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


class RowShape(serializers.Serializer[Any]):
    """A row with its public name and birth."""

    id = serializers.UUIDField(source="uuid", read_only=True)
    created_at = serializers.DateTimeField(read_only=True)


class RangeShape(serializers.Serializer[Any]):
    """An expected value with its 80 % range."""

    expected = serializers.FloatField()
    low = serializers.FloatField()
    high = serializers.FloatField()


class Input(serializers.Serializer[Any]):
    """Something that comes in. Names that are not known are refused: nothing that was sent is silently lost."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := sorted(set(data) - set(self.fields))):
            known = ", ".join(self.fields)
            raise serializers.ValidationError({name: [f"Unknown; known are {known}."] for name in unknown[:10]})
        return super().to_internal_value(data)


class Nothing(Input):
    """An empty body."""


class Named(serializers.Serializer[Any]):
    """A row that is only mentioned."""

    id = serializers.UUIDField(source="uuid", read_only=True)
    name = serializers.CharField(read_only=True)


@extend_schema_field({"type": "string", "nullable": True})
class PersonField(serializers.Field[Any, Any, Any, Any]):
    """A user as an address, or null."""

    def to_representation(self, value: Any) -> str:
        return str(value.email or value.get_username())


class StatefulShape(RowShape):
    """A row that moves through states."""

    status = serializers.CharField(read_only=True)
    status_at = serializers.DateTimeField(read_only=True)
