"""What the planner last said of a job, and when it looks again."""

from __future__ import annotations

from django.db import models

from jobs.models.jobs import Job

# What a planned job lacks, as the queue reads it; `waits_for` says it in words.
WAITS = [
    ("", "nothing"),
    ("quota", "GPUs of its team"),
    ("gave_way", "the end of the job that took its place"),
    ("spot", "spot machines"),
    ("offer", "an offer that its file allows"),
    ("approval", "an answer"),
    ("budget", "money"),
    ("machines", "machines that are being started"),
    ("held", "a person to see why no agent spoke on its machines"),
    ("failed", "a plan that does not fail"),
]
WAITS_LENGTH = 500  # of the words; longer ones are cut with a mark
MAY_COME = ("quota", "gave_way", "spot")  # when machines of the team have ended


class PlanState(models.Model):
    """One row per planned job: when it is due, why, and the last plan. Only services write it: plans, plan_claims, epochs."""

    job = models.OneToOneField(Job, models.CASCADE, related_name="plan_state")
    due_at = models.DateTimeField(db_index=True)
    why = models.CharField(max_length=200, blank=True, help_text="Why it is planned before its regular time")
    claim = models.UUIDField(
        null=True, help_text="Of the epoch that plans it now; until `due_at`, unless somebody asks"
    )
    taken = models.CharField(
        max_length=200, blank=True, help_text="Why the epoch that has not stored its plan was to plan it"
    )
    num_failures = models.PositiveSmallIntegerField(default=0, help_text="Plans in a row that could not be made")
    planned_at = models.DateTimeField(null=True)
    changed_at = models.DateTimeField(null=True, help_text="When the wanted numbers of machines last changed")
    waits_for = models.CharField(
        max_length=WAITS_LENGTH, blank=True, help_text="Why it has not what it wants, for the queue"
    )
    waits_on = models.CharField(max_length=16, blank=True, choices=WAITS, help_text="What it lacks: one of WAITS")
    priority = models.FloatField(default=0.0, help_text="Effective: jobs/scheduler/priority.py; the queue's order")
    plan = models.JSONField(default=dict, help_text="The last plan: jobs/scheduler/outlook.py")

    class Meta:
        ordering = ["due_at"]


class PlanPoint(models.Model):
    """What an epoch saw and said of a job, thinned out as it ages: the curves of the job page."""

    job = models.ForeignKey(Job, models.CASCADE, related_name="plan_points", db_index=False)
    at = models.DateTimeField()
    step = models.PositiveIntegerField()
    spent_usd = models.FloatField()
    spot = models.PositiveIntegerField(help_text="Machines held")
    on_demand = models.PositiveIntegerField()
    finish_at = models.DateTimeField(null=True)
    cost_usd = models.FloatField(null=True, help_text="Expected at the end")
    chance = models.FloatField(null=True, help_text="Of making the deadline")
    last_safe_at = models.DateTimeField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["job", "at"], name="plan_point_once")]
        ordering = ["job_id", "at"]
