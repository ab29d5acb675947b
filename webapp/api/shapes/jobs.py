"""Jobs: what they are, what they are asked, what they answer."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from jobs.models import Job
from jobs.selectors.planned_page import plan_now
from jobs.selectors.promises import job_promises
from jobs.services.boosts import MAX_POINTS
from webapp.api.shapes.fields import Input, Named, PersonField, RangeShape, StatefulShape
from webapp.api.shapes.plans import CurrentPlanShape


class CompletionShape(serializers.Serializer[Any]):
    """How far the loss is from its target."""

    kind = serializers.CharField(help_text="power, or why nothing is forecast: short, flat, rising")
    step = serializers.IntegerField(help_text="Steps done when it was fitted")
    loss = serializers.FloatField(allow_null=True, help_text="Over the newest tenth of the curve, nats per token")
    target = serializers.FloatField(allow_null=True)
    ends = RangeShape(help_text="The step at which the job is expected to end: at its target, or with its last step")
    chance = serializers.FloatField(allow_null=True, help_text="To reach the target within its steps")
    fall = RangeShape(help_text="Of the loss over the next `fall_steps`")
    fall_steps = serializers.IntegerField()
    sentence = serializers.CharField(help_text="The same in words; empty without a target")


class ProgressShape(serializers.Serializer[Any]):
    step = serializers.IntegerField(help_text="Optimizer steps done")
    goal = serializers.IntegerField()
    share = serializers.FloatField()
    finish_at = serializers.DateTimeField(allow_null=True, help_text="By the recent pace; null without one")
    finish_low = serializers.DateTimeField(allow_null=True)
    finish_high = serializers.DateTimeField(allow_null=True)
    step_time_s = serializers.FloatField(allow_null=True)
    completion = CompletionShape(allow_null=True, help_text="By the fit of its loss; null before the first one")


class PriorityShape(serializers.Serializer[Any]):
    """Points by which planned jobs of a team are ordered, and what they come from: docs/planning.md."""

    effective = serializers.FloatField()
    file = serializers.FloatField(help_text="Of the job file")
    boost = serializers.FloatField(help_text="By a person or a decision")
    completion = serializers.FloatField(help_text="0 to 2: how much of it is done")
    improvement = serializers.FloatField(
        help_text="-1 to 1: expected fall of the loss per USD, against the team's jobs"
    )
    slack = serializers.FloatField(help_text="0 to 3: how little time it has in hand before its deadline")
    is_protected = serializers.BooleanField(help_text="So near its goal that it is never stopped for another")


class JobShape(StatefulShape):
    """A job as lists show it. The context carries `lines`: job pk -> JobLine."""

    team = serializers.UUIDField(source="team.uuid", read_only=True)
    dataset = Named(read_only=True)
    name = serializers.CharField()
    model = serializers.CharField()
    goal_steps = serializers.IntegerField()
    goal_loss = serializers.FloatField(allow_null=True)
    deadline = serializers.DateTimeField(allow_null=True)
    deadline_passed_at = serializers.DateTimeField(
        allow_null=True, help_text="Set once the deadline is missed; the job goes on"
    )
    budget_usd = serializers.DecimalField(max_digits=12, decimal_places=2, allow_null=True)
    priority = serializers.IntegerField()
    backend = serializers.CharField()
    num_workers = serializers.IntegerField()
    current_step = serializers.IntegerField()
    failure_class = serializers.CharField()
    failure_message = serializers.CharField()
    held_for = serializers.CharField(help_text="Why the system has paused it, in words; empty: it has not")
    created_by = PersonField(read_only=True, allow_null=True)
    submitted_at = serializers.DateTimeField(allow_null=True)
    started_at = serializers.DateTimeField(allow_null=True)
    ended_at = serializers.DateTimeField(allow_null=True)
    num_open_decisions = serializers.IntegerField()
    num_shards = serializers.IntegerField()
    progress = serializers.SerializerMethodField()
    waits_for = serializers.SerializerMethodField(
        help_text="What a planned job lacks, why the launch of another waits, or what of a paused one still runs, in words; "
        "empty: nothing"
    )
    queue_place = serializers.SerializerMethodField(
        help_text="Among the team's planned jobs that wait, by effective priority and age, from 1"
    )
    boost = serializers.IntegerField(help_text="Points on top of the priority; negative: demoted")
    boost_reason = serializers.CharField()
    effective_priority = serializers.SerializerMethodField(help_text="Of a planned job, as last planned; else null")
    cost_usd = serializers.SerializerMethodField(help_text="What its machines have cost so far")

    @extend_schema_field(ProgressShape)
    def get_progress(self, job: Job) -> Any:
        return ProgressShape(self.context["lines"][job.pk].progress).data

    def get_waits_for(self, job: Job) -> str:
        return str(self.context["lines"][job.pk].waits_for)

    def get_queue_place(self, job: Job) -> int | None:
        place: int | None = self.context["lines"][job.pk].place
        return place

    @extend_schema_field(PriorityShape(allow_null=True))
    def get_effective_priority(self, job: Job) -> Any:
        priority = self.context["lines"][job.pk].priority
        return PriorityShape(priority).data if priority else None

    @extend_schema_field({"type": "string", "format": "decimal"})
    def get_cost_usd(self, job: Job) -> str:
        return f"{self.context['lines'][job.pk].cost_usd:.4f}"


class JobFull(JobShape):
    training = serializers.JSONField()
    config = serializers.JSONField(help_text="The job file as it was sent")
    promises = serializers.SerializerMethodField(
        help_text="What to know before it costs money: what becomes of its work when its machines go"
    )
    current_plan = serializers.SerializerMethodField(
        help_text="What the planner last said of it; null: not planned, not yet, paused, or ended"
    )

    @extend_schema_field(CurrentPlanShape(allow_null=True))
    def get_current_plan(self, job: Job) -> Any:
        state = plan_now(job=job)
        return CurrentPlanShape(state).data if state else None

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_promises(self, job: Job) -> list[str]:
        return job_promises(job=job)


class LogInput(Input):
    num_lines = serializers.IntegerField(default=200, min_value=1, max_value=2000)
    attempt = serializers.UUIDField(required=False, help_text="Whose `offset` it is; a newer attempt begins anew")
    offset = serializers.IntegerField(required=False, min_value=0)


class LogShape(serializers.Serializer[Any]):
    attempt = serializers.UUIDField(allow_null=True)
    lines = serializers.ListField(child=serializers.CharField())
    offset = serializers.IntegerField(help_text="Where to go on")


class JobShardShape(serializers.Serializer[Any]):
    """A shard as the job uses it."""

    shard = serializers.UUIDField(source="shard.uuid")
    key = serializers.CharField(source="shard.key")
    category = serializers.CharField(source="shard.category")
    index = serializers.IntegerField(help_text="Its row in the heatmap")
    revision = serializers.UUIDField(source="revision.uuid")
    revision_number = serializers.IntegerField(source="revision.number")
    num_samples = serializers.IntegerField(source="revision.num_samples")
    weight = serializers.FloatField()
    paused = serializers.BooleanField()
    pinned = serializers.BooleanField()
    hardness_score = serializers.FloatField()


class EvaluationShape(serializers.Serializer[Any]):
    """Loss on the samples that the job holds out."""

    attempt = serializers.UUIDField(source="attempt.uuid")
    step = serializers.IntegerField(help_text="Optimizer steps done")
    at = serializers.DateTimeField()
    loss = serializers.FloatField(allow_null=True, help_text="Nats per token; null: not finite")
    tokens = serializers.IntegerField()
    shards = serializers.DictField(child=serializers.FloatField(allow_null=True), help_text="Shard -> nats per token")


class ReasonInput(Input):
    reason = serializers.CharField(max_length=2000, required=False, allow_blank=True, default="")


class ResizeInput(Input):
    num_workers = serializers.IntegerField(
        min_value=1, max_value=4096, help_text="Within the job file's resources.nodes"
    )


class BoostInput(Input):
    points = serializers.IntegerField(min_value=0, max_value=MAX_POINTS)
    reason = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")


class RebalanceInput(Input):
    shares = serializers.DictField(
        child=serializers.FloatField(min_value=0, max_value=1e9), help_text="Rank -> weight, all ranks; empty: equal"
    )


class DrainInput(Input):
    rank = serializers.IntegerField(min_value=0, max_value=4095)


class ShardStats(Input):
    """One shard's numbers. What is not finite is null here and named in `nonfinite`: `{"loss": {"nan": [0]}}`."""

    shard_id = serializers.CharField(max_length=120)
    loss = serializers.FloatField(allow_null=True, min_value=-1e30, max_value=1e30, help_text="Mean, nats per token")
    gradient_norm = serializers.FloatField(required=False, allow_null=True, min_value=0, max_value=1e30)
    throughput = serializers.FloatField(
        required=False, allow_null=True, min_value=0, max_value=1e15, help_text="Tokens/s"
    )
    step = serializers.IntegerField(required=False, allow_null=True, min_value=0, max_value=2**31 - 1)
    tokens = serializers.IntegerField(required=False, min_value=1, max_value=2**40)
    nonfinite = serializers.DictField(required=False, child=serializers.DictField())

    def validate_nonfinite(self, value: dict[str, Any]) -> dict[str, Any]:
        """Only loss and gradient_norm can be flagged."""
        if set(value) - {"loss", "gradient_norm", "throughput"} or any(
            set(flag) - {"nan", "inf", "-inf"} for flag in value.values()
        ):
            raise serializers.ValidationError('As {"loss": {"nan": [0]}}, with nan, inf or -inf.')
        return {name: flag for name, flag in value.items() if name != "throughput"}


class ShardStatsStored(serializers.Serializer[Any]):
    accepted = serializers.IntegerField(help_text="Points stored")
    duplicate = serializers.BooleanField()
