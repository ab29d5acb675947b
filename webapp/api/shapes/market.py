"""Offers, their quotes and forecasts, feeds, and rows that were refused."""

from __future__ import annotations

from rest_framework import serializers

from webapp.api.shapes.fields import Input, RowShape


class OfferShape(RowShape):
    provider = serializers.CharField()
    region = serializers.CharField()
    zone = serializers.CharField()
    instance_type = serializers.CharField()
    product = serializers.CharField()
    is_spot = serializers.BooleanField()
    num_gpus = serializers.IntegerField(allow_null=True, help_text="GPUs of one machine, where known")
    feed = serializers.CharField(help_text="The feed or file that last told of it")
    price_usd_per_hour = serializers.DecimalField(
        14, 8, source="latest_price_usd_per_hour", read_only=True, allow_null=True, help_text="The latest price"
    )
    availability = serializers.IntegerField(source="latest_availability", read_only=True, allow_null=True)
    quoted_at = serializers.DateTimeField(source="latest_at", read_only=True, allow_null=True)
    level_confirmed_at = serializers.DateTimeField(allow_null=True)


class QuoteShape(serializers.Serializer):
    at = serializers.DateTimeField()
    price_usd_per_hour = serializers.DecimalField(14, 8, allow_null=True)
    availability = serializers.IntegerField(allow_null=True)


class ForecastShape(serializers.Serializer):
    target = serializers.CharField(help_text="price or availability")
    model = serializers.CharField()
    fallback = serializers.CharField(help_text="Why another model answered than the one asked for")
    start_at = serializers.DateTimeField()
    gap_s = serializers.IntegerField()
    mean = serializers.ListField(child=serializers.FloatField())
    quantiles = serializers.DictField(child=serializers.ListField(child=serializers.FloatField()))
    held_1h = serializers.FloatField(allow_null=True, help_text="Chance that what can be had is held for an hour")
    computed_at = serializers.DateTimeField()


class ScoreShape(serializers.Serializer):
    target = serializers.CharField(help_text="price or availability")
    model = serializers.CharField()
    is_chosen = serializers.BooleanField()
    mae = serializers.FloatField()
    mase = serializers.FloatField(help_text="Error over that of persistence on the same origins")
    pinball = serializers.FloatField()
    coverage_80 = serializers.FloatField()
    num_origins = serializers.IntegerField()
    seconds = serializers.FloatField()
    reason = serializers.CharField()
    computed_at = serializers.DateTimeField()


class FeedShape(serializers.Serializer):
    name = serializers.CharField()
    kind = serializers.CharField()
    is_enabled = serializers.BooleanField()
    period_s = serializers.IntegerField()
    last_try_at = serializers.DateTimeField(allow_null=True)
    last_success_at = serializers.DateTimeField(allow_null=True)
    next_try_at = serializers.DateTimeField()
    num_failures = serializers.IntegerField(help_text="In a row, since the last success")
    last_error = serializers.CharField()
    last_notes = serializers.ListField(child=serializers.CharField())


class RefusedShape(serializers.Serializer):
    feed = serializers.CharField()
    where = serializers.CharField()
    reason = serializers.CharField()
    raw = serializers.CharField()
    num_seen = serializers.IntegerField()
    first_seen_at = serializers.DateTimeField()
    last_seen_at = serializers.DateTimeField()


class ConfirmInput(Input):
    team = serializers.UUIDField(required=False, help_text="Whose history says that you did it")


class PolicyWeightShape(serializers.Serializer):
    policy = serializers.CharField()
    weight = serializers.FloatField(help_text="0 to 1; all of a kind add up to 1")


class PolicyWeightsShape(serializers.Serializer):
    """Which policy the planner follows for one kind of job on an offer."""

    sizes = serializers.CharField(source="kind.sizes")
    pressure = serializers.CharField(source="kind.pressure", help_text="How tight it is and what a change costs")
    leader = serializers.CharField(source="row.leader", help_text="Empty while fewer than four windows are replayed")
    regret = serializers.FloatField(
        source="row.regret", allow_null=True, help_text="Against the best policy, utility scaled to 1 per window"
    )
    num_windows = serializers.IntegerField(source="row.num_windows", help_text="Replayed windows")
    replayed_until = serializers.DateTimeField(source="row.replayed_until", allow_null=True)
    wanted_at = serializers.DateTimeField(source="row.wanted_at", help_text="When such a job was last planned on it")
    weights = PolicyWeightShape(source="members", many=True)
