"""What a job would take, and what the planner last said of it."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from webapp.api.shapes.fields import RangeShape


class PlanShape(serializers.Serializer[Any]):
    """What a job would take. What cannot be said is null, and `reasons` says why."""

    goal_steps = serializers.IntegerField()
    num_workers = serializers.IntegerField()
    num_samples = serializers.IntegerField(help_text="Samples of the dataset as it stands")
    num_epochs = serializers.FloatField(help_text="How often a sample is seen on average")
    num_past_jobs = serializers.IntegerField(help_text="Earlier jobs whose pace was used")
    duration_s = serializers.FloatField(allow_null=True)
    duration_low_s = serializers.FloatField(allow_null=True)
    duration_high_s = serializers.FloatField(allow_null=True)
    finish_at = serializers.DateTimeField(allow_null=True)
    worker_hours = serializers.FloatField(allow_null=True)
    cost_usd = serializers.FloatField(allow_null=True)
    deadline_margin_s = serializers.FloatField(allow_null=True)
    deadline_chance = serializers.FloatField(allow_null=True, help_text="Share of past paces that make the deadline")
    within_budget = serializers.BooleanField(allow_null=True)
    gpu_memory_gib = serializers.FloatField(
        allow_null=True, help_text="Of each GPU; null for a model whose size is not known"
    )
    min_workers = serializers.IntegerField(allow_null=True, help_text="Smallest world that fits the GPUs")
    micro_batch = serializers.IntegerField(allow_null=True, help_text="Largest up to the wanted one that fits")
    num_accumulation = serializers.IntegerField(allow_null=True, help_text="Micro-batches of a worker in a step")
    is_planned = serializers.BooleanField(
        help_text="Its machines come and go by the planner, whose numbers these are, on the market of now"
    )
    cost_low_usd = serializers.FloatField(allow_null=True, help_text="80 % range, of a planned job")
    cost_high_usd = serializers.FloatField(allow_null=True)
    last_safe_at = serializers.DateTimeField(
        allow_null=True, help_text="Until then on-demand alone still makes the deadline"
    )
    first_spot = serializers.IntegerField(allow_null=True, help_text="Machines that it would begin with now")
    first_on_demand = serializers.IntegerField(allow_null=True)
    policy = serializers.CharField(
        help_text="Which policy decides for a planned job and why; empty where a plain rule does"
    )
    reasons = serializers.ListField(child=serializers.CharField())


class MachinesShape(serializers.Serializer[Any]):
    spot = serializers.IntegerField()
    on_demand = serializers.IntegerField()


class MomentsShape(serializers.Serializer[Any]):
    """An expected moment with its 80 % range; null lies beyond what was looked at."""

    expected = serializers.DateTimeField(allow_null=True)
    low = serializers.DateTimeField(allow_null=True)
    high = serializers.DateTimeField(allow_null=True)


class SpotShape(serializers.Serializer[Any]):
    """The spot offer that the plan counts on."""

    offer = serializers.UUIDField()
    name = serializers.CharField()
    usd_per_hour = serializers.FloatField()
    available = serializers.IntegerField(help_text="Machines for this job, those that it holds included")


class CurrentPlanShape(serializers.Serializer[Any]):
    """What the planner last said of a job: docs/planning.md."""

    planned_at = serializers.DateTimeField(source="plan.at")
    sentence = serializers.CharField(source="plan.sentence", help_text="What it wants to hold now, and why")
    held_back = serializers.CharField(
        source="plan.held_back", help_text="What keeps it smaller, in words; empty: nothing"
    )
    held = MachinesShape(source="plan.held")
    target = MachinesShape(source="plan.target", help_text="What it goes for, within quota, budget and approvals")
    wanted = MachinesShape(source="plan.wanted", help_text="What it would go for without them")
    finish_at = MomentsShape(source="plan.finish_at", allow_null=True)
    cost_usd = RangeShape(
        source="plan.cost_usd", allow_null=True, help_text="Of the whole job, what it has cost included"
    )
    chance = serializers.FloatField(source="plan.chance", allow_null=True, help_text="To make the deadline")
    last_safe_at = serializers.DateTimeField(
        source="plan.last_safe_at", allow_null=True, help_text="Until then on-demand alone still makes the deadline"
    )
    spot = SpotShape(source="plan.spot", allow_null=True, default=None)
