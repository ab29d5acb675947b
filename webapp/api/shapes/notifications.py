"""Notification targets and what was told there."""

from __future__ import annotations

from rest_framework import serializers

from jobs.models.notifications import FORMS
from webapp.api.shapes.fields import Input, RowShape


class TargetShape(RowShape):
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    name = serializers.CharField()
    form = serializers.ChoiceField(choices=FORMS)
    address = serializers.CharField(
        source="address_shown", read_only=True, help_text="Scheme and host only; for apprise the scheme"
    )
    kinds = serializers.ListField(child=serializers.CharField())
    enabled = serializers.BooleanField()
    last_sent_at = serializers.DateTimeField(allow_null=True)
    num_failures = serializers.IntegerField(help_text="Failed tries since the last that arrived")


class TargetMade(TargetShape):
    secret = serializers.CharField(help_text="Key of the signature (webhooks); shown this once")


class TargetNew(Input):
    team = serializers.UUIDField(required=False)
    name = serializers.CharField(max_length=80)
    form = serializers.ChoiceField(choices=FORMS, default="webhook")
    address = serializers.CharField(max_length=1000)
    kinds = serializers.ListField(child=serializers.CharField(max_length=64), max_length=50)


class TargetEnabled(Input):
    enabled = serializers.BooleanField()


class NotificationShape(RowShape):
    target = serializers.UUIDField(source="target.uuid", read_only=True)
    event = serializers.IntegerField(source="event_id")
    kind = serializers.CharField(source="event.kind")
    text = serializers.CharField(source="event.text")
    state = serializers.CharField(help_text="waiting, sent, given up")
    due_at = serializers.DateTimeField(allow_null=True)
    num_tries = serializers.IntegerField()
    sent_at = serializers.DateTimeField(allow_null=True)
    status_code = serializers.IntegerField(allow_null=True)
    took_s = serializers.FloatField(allow_null=True)
    error = serializers.CharField()
