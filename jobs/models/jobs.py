"""Jobs, their attempts, and the workers of an attempt."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from jobs.models.base import PublicModel, StatefulModel
from jobs.models.datasets import Dataset, Shard, ShardRevision
from jobs.models.teams import Team
from jobs.states import choices

GAVE_WAY = "gave way to"  # how the reason of a pause begins that made room for another job


class Job(StatefulModel):
    """What a user wants trained: data, goal, deadline, budget."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="jobs")
    dataset = models.ForeignKey(Dataset, models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=120)
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    model = models.CharField(max_length=300, help_text="Path, hub id, or tiny:SIZE")
    goal_steps = models.PositiveIntegerField(help_text="Optimizer steps to do")
    goal_loss = models.FloatField(null=True, blank=True, help_text="Target loss in nats per token, if any")
    deadline = models.DateTimeField(null=True, blank=True)
    deadline_passed_at = models.DateTimeField(null=True, help_text="When it was said that the deadline is missed")
    budget_usd = models.DecimalField(max_digits=12, decimal_places=2, null=True, blank=True)
    budget_warned_usd = models.DecimalField(
        max_digits=12, decimal_places=2, null=True, help_text="The budget of which it was said that it is nearly spent"
    )
    held_for = models.CharField(
        max_length=300, blank=True, help_text="Why the system has paused it, in words; empty: a person did"
    )
    priority = models.SmallIntegerField(default=0, help_text="Higher goes first")
    boost = models.SmallIntegerField(default=0, help_text="Points on top of the priority; negative: demoted")
    boost_reason = models.CharField(max_length=300, blank=True)
    backend = models.CharField(max_length=32, default="local")
    num_workers = models.PositiveIntegerField(default=1)
    drained = models.JSONField(default=list, help_text="Places whose workers were drained, oldest first")
    training = models.JSONField(default=dict, help_text="global_batch, micro_batch, lr, seq_len, seed, lora, …")
    config = models.JSONField(default=dict, help_text="The job file as submitted")
    failure_class = models.CharField(max_length=16, blank=True)
    failure_message = models.TextField(blank=True)
    current_step = models.PositiveIntegerField(default=0, help_text="Optimizer steps done on the surviving branch")
    submitted_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    ended_at = models.DateTimeField(null=True, blank=True)
    report = models.JSONField(default=dict, help_text="Written once when the job ends")

    class Meta:
        constraints = [
            models.CheckConstraint(condition=models.Q(status__in=[s for s, _ in choices("Job")]), name="job_status"),
        ]
        indexes = [models.Index(fields=["team", "status", "-id"])]
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.name

    @property
    def has_given_way(self) -> bool:
        """Whether it is paused because it made room for another job."""
        return self.held_for.startswith(GAVE_WAY)


class JobShard(models.Model):
    """A shard as a job uses it: its weight, whether it is paused, and its revision in force."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="job_shards")
    shard = models.ForeignKey(Shard, models.PROTECT, related_name="job_shards")
    revision = models.ForeignKey(ShardRevision, models.PROTECT, related_name="+")
    index = models.PositiveIntegerField(help_text="Place in this job's rollups; never changes")
    weight = models.FloatField(default=1.0)
    paused = models.BooleanField(default=False)
    pinned = models.BooleanField(default=False, help_text="Rules leave the weight of a pinned shard alone")
    hardness_score = models.FloatField(default=0.5)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["job", "shard"], name="job_shard_once"),
            models.UniqueConstraint(fields=["job", "index"], name="job_shard_index_once"),
        ]
        ordering = ["job_id", "index"]


class Attempt(StatefulModel):
    """One run of a job on one allocation. The highest `fence` of a job may write; lower ones are refused."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="attempts")
    fence = models.PositiveIntegerField(help_text="Fencing token: 1, 2, 3, … within the job")
    world_size = models.PositiveIntegerField()
    places = models.JSONField(default=list, help_text="Machine or GPU of each rank; empty: 0, 1, 2, …")
    start_step = models.PositiveIntegerField(default=0)
    steps_again = models.PositiveIntegerField(
        null=True, help_text="Steps that the attempt before had done and this one does again; null: not known"
    )
    planned_steps = models.PositiveIntegerField(null=True)
    last_step = models.IntegerField(default=-1, help_text="Highest step reported, -1 before the first")
    capabilities = models.JSONField(default=list)
    versions = models.JSONField(default=dict)
    handle = models.JSONField(default=dict, help_text="The backend's handle")
    run_dir = models.CharField(max_length=500, blank=True)
    resumed_from = models.ForeignKey("jobs.Snapshot", models.SET_NULL, null=True, related_name="+")
    running_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    heartbeat_at = models.DateTimeField(null=True)
    heard_since = models.DateTimeField(null=True, help_text="Since when its reports come without a gap")
    stepped_at = models.DateTimeField(null=True, help_text="When its newest step was reported")
    busy_at = models.DateTimeField(null=True, help_text="When a worker last said that it evaluates, saves or holds")
    exit_code = models.IntegerField(null=True)
    detail = models.TextField(blank=True)
    totals = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "fence"], name="attempt_fence_once")]
        indexes = [models.Index(fields=["status", "heartbeat_at"])]
        ordering = ["job_id", "fence"]

    def __str__(self) -> str:
        return f"{self.job.name} attempt {self.fence}"


class Worker(PublicModel):
    """One rank's process on one node."""

    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="workers")
    rank = models.PositiveIntegerField()
    host = models.CharField(max_length=200, blank=True)
    last_seq = models.IntegerField(default=-1)
    last_step = models.IntegerField(default=-1)
    heartbeat_at = models.DateTimeField(null=True)
    step_time_s = models.FloatField(null=True, help_text="Smoothed wall time of a step")
    micro_time_s = models.FloatField(null=True, help_text="Smoothed own time for one micro-batch, without waiting")
    num_micro = models.FloatField(null=True, help_text="Micro-batches of its newest step")
    system = models.JSONField(default=dict)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["attempt", "rank"], name="worker_rank_once")]
        ordering = ["attempt_id", "rank"]
