"""Notification targets and what was told there."""

from __future__ import annotations

from urllib.parse import urlsplit

from rest_framework import serializers

from jobs.models import NotificationTarget
from jobs.models.notifications import FORMS
from webapp.api.shapes.fields import Input, RowShape


def address_shown(target: NotificationTarget) -> str:
    """An address without what may be secret in it: user, password, path and query; for apprise, where many a service takes
    its key in the host's place (`pbul://KEY`, `slack://A/B/C`), the service only."""
    if target.form == "apprise":
        return f"{target.address.partition(':')[0]}://…"
    parts = urlsplit(target.address)
    return f"{parts.scheme}://{parts.hostname or ''}/…"


class TargetShape(RowShape):
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    name = serializers.CharField()
    form = serializers.ChoiceField(choices=FORMS)
    address = serializers.SerializerMethodField(help_text="Scheme and host only; for apprise the scheme")
    kinds = serializers.ListField(child=serializers.CharField())
    enabled = serializers.BooleanField()
    last_sent_at = serializers.DateTimeField(allow_null=True)
    num_failures = serializers.IntegerField(help_text="Failed tries since the last that arrived")

    def get_address(self, target: NotificationTarget) -> str:
        return address_shown(target)


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
