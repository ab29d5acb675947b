"""The job file, and what may be changed of it later."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from jobs.scheduler.priority import MAX_PRIORITY
from jobs.selectors.graces import HIGHEST_S, LOWEST_S
from jobs.services.job_settings import FIDELITIES
from webapp.api.shapes.fields import Input, InstantField


class DatasetPart(Input):
    name = serializers.CharField(max_length=120, required=False)
    id = serializers.UUIDField(required=False)
    weights = serializers.DictField(child=serializers.FloatField(min_value=0, max_value=1e6), required=False)


class GoalPart(Input):
    steps = serializers.IntegerField(min_value=1, max_value=100_000_000, required=False)
    epochs = serializers.FloatField(
        required=False,
        min_value=1e-6,
        max_value=1e6,
        help_text="In the place of steps: those in which so many times the samples that the dataset holds now come",
    )
    metric = serializers.ChoiceField(choices=["loss"], required=False, help_text="loss: nats per token")
    target = serializers.FloatField(required=False, min_value=0, max_value=1e6)
    step_time_s = serializers.FloatField(
        required=False,
        min_value=1e-6,
        max_value=1e6,
        help_text="Where you know it: a deadline that it cannot meet is refused",
    )


class NodesPart(Input):
    min = serializers.IntegerField(min_value=1, max_value=4096, default=1)
    max = serializers.IntegerField(min_value=1, max_value=4096, required=False)


class ResourcesPart(Input):
    backend = serializers.CharField(max_length=32, required=False)
    gpu = serializers.CharField(max_length=80, required=False)
    nodes = NodesPart(required=False)
    spot_policy = serializers.CharField(max_length=40, required=False)
    max_price = serializers.FloatField(
        min_value=0, max_value=1e6, required=False, help_text="USD per hour that a machine may cost, spot or on-demand"
    )
    regions = serializers.ListField(
        child=serializers.CharField(max_length=80), max_length=200, required=False, help_text="Where machines may stand"
    )
    policy = serializers.CharField(
        max_length=40,
        required=False,
        help_text="selector (the usual), or a policy by name as SpotFirst or AHAP(6,2,0.8)",
    )


class SnapshotPart(Input):
    uri = serializers.CharField(
        max_length=500, required=False, help_text="Where snapshots lie, as s3://bucket/folder; empty: the job's folder"
    )
    check_every = serializers.IntegerField(
        min_value=1,
        max_value=10_000_000,
        required=False,
        help_text="Optimizer steps between snapshots: training.snapshot_every by another name (which goes before, if both are"
        " given); not the launcher's --check_every, which counts micro-steps between looks for orders",
    )
    fidelity = serializers.ChoiceField(
        FIDELITIES, required=False, help_text="Equal bits after a resize: with any number of workers, or with as many"
    )
    grace_s = serializers.FloatField(
        min_value=LOWEST_S,
        max_value=HIGHEST_S,
        required=False,
        help_text="Seconds between SIGTERM and SIGKILL when it is stopped or moved; usually three times its last save, at least 30",
    )
    async_writes = serializers.BooleanField(required=False, help_text="Write while training goes on")


class JobNew(Input):
    """A job file, in YAML or JSON. What names the same thing twice (goal.steps and goal_steps) may be given once."""

    team = serializers.UUIDField(required=False)
    name = serializers.CharField(max_length=120)
    model = serializers.CharField(max_length=300, help_text="A path, a hub id, or tiny:4m")
    dataset = serializers.UUIDField(required=False, help_text="Or datasets, with names")
    datasets = DatasetPart(  # type: ignore[call-arg]
        many=True, required=False, min_length=1, help_text="One: a job trains on the shards of one dataset"
    )
    weights = serializers.DictField(child=serializers.FloatField(min_value=0, max_value=1e6), required=False)
    goal = GoalPart(required=False)
    goal_steps = serializers.IntegerField(min_value=1, max_value=100_000_000, required=False)
    goal_loss = serializers.FloatField(min_value=0, max_value=1e6, required=False, allow_null=True)
    deadline = InstantField(required=False, allow_null=True)
    budget_usd = serializers.DecimalField(max_digits=12, decimal_places=2, min_value=0, required=False, allow_null=True)
    budget = serializers.DecimalField(max_digits=12, decimal_places=2, min_value=0, required=False, allow_null=True)
    priority = serializers.IntegerField(min_value=-MAX_PRIORITY, max_value=MAX_PRIORITY, default=0)
    backend = serializers.CharField(max_length=32, required=False)
    num_workers = serializers.IntegerField(min_value=1, max_value=4096, required=False)
    training = serializers.DictField(
        required=False, help_text="global_batch, micro_batch, lr, seq_len, seed, lora, dtype, …"
    )
    resources = ResourcesPart(required=False)
    snapshot = SnapshotPart(required=False)
    autonomy = serializers.DictField(
        child=serializers.CharField(max_length=24), required=False, help_text="Decision kind -> level, for this job"
    )
    rules = serializers.DictField(
        child=serializers.DictField(),
        required=False,
        help_text="Rule -> thresholds for this job, as {shard_loss: {min_gap: 0.4}}",
    )
    env = serializers.DictField(child=serializers.CharField(max_length=4000), required=False)
    setup = serializers.CharField(max_length=20_000, required=False)
    run = serializers.CharField(max_length=20_000, required=False)
    submit = serializers.BooleanField(default=False, help_text="Submit at once")
    dry_run = serializers.BooleanField(default=False, help_text="Check and plan; create nothing")

    def validate_datasets(self, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if len(value) > 1:
            raise serializers.ValidationError(
                f"A job trains on the shards of one dataset, and {len(value)} are named: upload all shards to one dataset, and "
                "weigh them there or with its weights here (0 leaves one out)."
            )
        return value


class JobChange(Input):
    """What is to be different; null takes a limit away. What is not named stays."""

    deadline = InstantField(required=False, allow_null=True)
    budget_usd = serializers.DecimalField(max_digits=12, decimal_places=2, min_value=0, required=False, allow_null=True)
    max_price = serializers.FloatField(min_value=0, max_value=1e6, required=False, allow_null=True)
    regions = serializers.ListField(
        child=serializers.CharField(max_length=80), max_length=200, required=False, allow_null=True
    )
    policy = serializers.CharField(max_length=40, required=False, allow_null=True)
