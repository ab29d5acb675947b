"""Decisions, approvals, rules, events, commands, directives, augmentations."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from jobs.models import AUTONOMY, ROLES, Decision
from jobs.selectors.decisions import args_in_force
from jobs.services.rules import KINDS
from webapp.api.shapes.fields import Input, Named, PersonField, RowShape, StatefulShape


class ApprovalShape(RowShape):
    user = PersonField(read_only=True, allow_null=True)
    by_rule = serializers.CharField()
    answer = serializers.CharField(help_text="approve or reject")
    reason = serializers.CharField()
    args = serializers.JSONField(allow_null=True, help_text="Edited arguments, if any")
    void_at = serializers.DateTimeField(
        allow_null=True, help_text="When a later approver changed the arguments, so that this answer no longer counts"
    )


class DecisionShape(StatefulShape):
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    job = Named(read_only=True)
    number = serializers.IntegerField()
    kind = serializers.CharField()
    direction = serializers.CharField()
    rule = serializers.CharField()
    subject = serializers.CharField()
    sentence = serializers.CharField()
    args = serializers.JSONField()
    allowed = serializers.JSONField(help_text="Ranges within which the arguments may be edited")
    expected = serializers.JSONField()
    price_usd = serializers.DecimalField(max_digits=12, decimal_places=4)
    waiting_usd_per_hour = serializers.DecimalField(max_digits=12, decimal_places=4)
    expires_at = serializers.DateTimeField()
    default_at = serializers.DateTimeField(allow_null=True, help_text="When silence counts as default_answer")
    default_answer = serializers.CharField()
    autonomy = serializers.CharField()
    autonomy_reason = serializers.CharField()
    executed_at = serializers.DateTimeField(allow_null=True)
    applied_step = serializers.IntegerField(allow_null=True)
    outcome = serializers.JSONField()
    outcome_at = serializers.DateTimeField(allow_null=True)
    failure = serializers.CharField()


class DecisionFull(DecisionShape):
    evidence = serializers.JSONField()
    requested_by = PersonField(read_only=True, allow_null=True)
    approvals = ApprovalShape(many=True)
    args_in_force = serializers.SerializerMethodField(
        help_text="What a yes approves now: as proposed, or as an earlier of two approvers edited it"
    )

    @extend_schema_field(serializers.DictField())
    def get_args_in_force(self, decision: Decision) -> dict[str, Any]:
        return args_in_force(decision=decision)


class ApproveInput(Input):
    args = serializers.DictField(required=False, help_text="Edited arguments, inside `allowed`")
    seen_args = serializers.DictField(
        required=False, help_text="`args_in_force` as you read them; needed where an earlier approver edited them"
    )
    reason = serializers.CharField(max_length=2000, required=False, allow_blank=True, default="")


class RejectInput(Input):
    reason = serializers.CharField(max_length=2000)


class BulkInput(Input):
    decisions = serializers.ListField(child=serializers.UUIDField(), min_length=1, max_length=100)
    answer = serializers.ChoiceField(choices=["approve", "reject"])
    reason = serializers.CharField(max_length=2000, required=False, allow_blank=True, default="")


class BulkLine(serializers.Serializer[Any]):
    id = serializers.UUIDField()
    status = serializers.IntegerField(help_text="As if it had been sent alone: 200, 403, 404, 409")
    code = serializers.CharField(help_text="Empty when done")
    detail = serializers.CharField()


class BulkResult(serializers.Serializer[Any]):
    num_done = serializers.IntegerField()
    results = BulkLine(many=True)


class RuleShape(RowShape):
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    job = serializers.UUIDField(source="job.uuid", read_only=True, allow_null=True)
    kind = serializers.CharField()
    autonomy = serializers.CharField()
    limits = serializers.JSONField()
    default_answer = serializers.CharField()
    default_after_s = serializers.IntegerField()
    min_role = serializers.CharField()
    enabled = serializers.BooleanField()
    updated_by = PersonField(read_only=True, allow_null=True)


class RuleNew(Input):
    team = serializers.UUIDField(required=False)
    job = serializers.UUIDField(required=False, allow_null=True, help_text="For this job only; else for the team")
    kind = serializers.ChoiceField(choices=[(k, k) for k in KINDS])
    autonomy = serializers.ChoiceField(choices=[(a, a) for a in AUTONOMY])
    limits = serializers.DictField(child=serializers.FloatField(min_value=0, max_value=1e12), required=False)
    default_answer = serializers.ChoiceField(choices=["approve", "reject", "escalate"], required=False)
    default_after_s = serializers.IntegerField(min_value=60, max_value=30 * 86_400, required=False)
    min_role = serializers.ChoiceField(choices=[(r, r) for r in ROLES], required=False)
    enabled = serializers.BooleanField(required=False)


class EventShape(serializers.Serializer[Any]):
    id = serializers.IntegerField(help_text="Grows with time; the cursor of the list")
    at = serializers.DateTimeField()
    team = serializers.UUIDField(source="team.uuid", read_only=True)
    job = Named(read_only=True, allow_null=True)
    kind = serializers.CharField()
    subject_type = serializers.CharField()
    subject = serializers.UUIDField(source="subject_uuid", allow_null=True)
    actor = serializers.CharField()
    text = serializers.CharField()
    data = serializers.JSONField()  # type: ignore[assignment]


class CommandShape(StatefulShape):
    job = serializers.UUIDField(source="job.uuid", read_only=True)
    decision = serializers.UUIDField(source="decision.uuid", read_only=True, allow_null=True)
    kind = serializers.CharField()
    args = serializers.JSONField()
    queue = serializers.CharField()
    due_at = serializers.DateTimeField()
    num_tries = serializers.IntegerField()
    result = serializers.JSONField()
    error = serializers.CharField()
    ended_at = serializers.DateTimeField(allow_null=True)


class DirectiveShape(StatefulShape):
    attempt = serializers.UUIDField(source="attempt.uuid", read_only=True)
    decision = serializers.UUIDField(source="decision.uuid", read_only=True, allow_null=True)
    action = serializers.CharField()
    args = serializers.JSONField()
    not_before_step = serializers.IntegerField()
    delivered_at = serializers.DateTimeField(allow_null=True)
    applied_step = serializers.IntegerField(allow_null=True)
    detail = serializers.CharField()


class AugmentationShape(StatefulShape):
    job = serializers.UUIDField(source="job.uuid", read_only=True)
    shard = serializers.CharField(source="shard.key", read_only=True)
    decision = serializers.UUIDField(source="decision.uuid", read_only=True, allow_null=True)
    method = serializers.CharField()
    mode = serializers.CharField(help_text="replace or extend")
    params = serializers.JSONField()
    seed = serializers.IntegerField()
    priority = serializers.CharField()
    generator = serializers.CharField()
    num_wanted = serializers.IntegerField()
    num_batches = serializers.IntegerField()
    num_made = serializers.IntegerField()
    num_rejected = serializers.IntegerField()
    ended_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField()
