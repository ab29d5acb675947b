"""What a team holds as JSON."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from webapp.api.shapes.costs import MoneyField
from webapp.api.shapes.fields import Input, Named


class TeamInput(Input):
    team = serializers.UUIDField(required=False, help_text="Needed by who has several")


class FleetWorker(serializers.Serializer[Any]):
    job = Named(source="worker.attempt.job")
    attempt = serializers.UUIDField(source="worker.attempt.uuid")
    rank = serializers.IntegerField(source="worker.rank")
    host = serializers.CharField(source="worker.host")
    last_step = serializers.IntegerField(source="worker.last_step", help_text="-1 before the first")
    step_time_s = serializers.FloatField(source="worker.step_time_s", allow_null=True)
    pace = serializers.FloatField(allow_null=True, help_text="Its own time for a micro-batch over the others' median")
    silent_s = serializers.FloatField(allow_null=True, help_text="Since its last word; null before the first")
    is_slow = serializers.BooleanField()
    is_silent = serializers.BooleanField()


class FleetMachine(serializers.Serializer[Any]):
    id = serializers.UUIDField(source="instance.uuid")
    provider = serializers.CharField(source="instance.backend")
    provider_id = serializers.CharField(source="instance.provider_id")
    job = Named(source="instance.job", allow_null=True)
    offer = serializers.CharField(source="instance.offer", allow_null=True)
    kind = serializers.CharField(source="instance.kind", help_text="spot, on_demand or local")
    status = serializers.CharField(source="instance.status")
    detail = serializers.CharField(source="instance.detail")
    waits_for = serializers.CharField(source="instance.asked.answer", default="", help_text="The provider's last no")
    num_gpus = serializers.IntegerField(source="instance.num_gpus")
    price_usd_per_hour = serializers.DecimalField(source="instance.price_usd_per_hour", max_digits=12, decimal_places=6)
    started_at = serializers.DateTimeField(source="instance.started_at", allow_null=True)
    ended_at = serializers.DateTimeField(source="instance.ended_at", allow_null=True)
    notice_at = serializers.DateTimeField(source="instance.notice_at", allow_null=True)
    ends_by = serializers.DateTimeField(source="instance.ends_by", allow_null=True)
    missing_at = serializers.DateTimeField(
        source="instance.missing_at", allow_null=True, help_text="Since when the provider tells nothing of it"
    )
    ending_s = serializers.FloatField(
        allow_null=True, help_text="Since its end was asked for, while that is not confirmed; null otherwise"
    )
    is_end_late = serializers.BooleanField(help_text="It is longer than COUNTERFLOW_END_LATE_S; it goes on costing")
    end_answer = serializers.CharField(
        source="instance.end_asked.answer", default="", help_text="Why the provider refused its end when last asked"
    )
    cost_usd = MoneyField()


class FleetOrphan(serializers.Serializer[Any]):
    id = serializers.UUIDField(source="uuid")
    provider = serializers.CharField(source="backend", help_text="A backend, or machines: those that are bought")
    claim = serializers.CharField()
    detail = serializers.CharField(help_text="What it is, and why it is ended")
    job = Named(allow_null=True)
    num_asked = serializers.IntegerField(help_text="How often its end was asked for")
    created_at = serializers.DateTimeField(help_text="When it was found")
    seen_at = serializers.DateTimeField(help_text="When it was last seen")
    ended_at = serializers.DateTimeField(allow_null=True, help_text="When it was first seen no more")


class FleetShape(serializers.Serializer[Any]):
    num_workers = serializers.IntegerField()
    num_gpus = serializers.IntegerField(help_text="On machines whose end is not confirmed")
    usd_per_hour = MoneyField()
    workers = FleetWorker(many=True, help_text="Silent ones first, then slow ones")
    held = FleetMachine(many=True, help_text="Machines whose end is not confirmed")
    ended = FleetMachine(many=True, help_text="Those that ended last")
    orphans = FleetOrphan(many=True, help_text="Nobody's, with our tag: ended, and shown for a day after")
