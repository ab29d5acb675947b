"""Decisions with their evidence, approvals, rules."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from jobs.models.base import PublicModel, StatefulModel
from jobs.models.jobs import Job
from jobs.models.teams import Team
from jobs.states import choices

AUTONOMY = ("off", "suggest", "ask", "ask_default", "auto_within_limits", "auto")


class Decision(StatefulModel):
    """One stored proposal. `evidence` and `situation` are enough to compute it again."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="decisions")
    job = models.ForeignKey(Job, models.CASCADE, related_name="decisions")
    number = models.PositiveIntegerField(help_text="D-143 within the team")
    kind = models.CharField(max_length=32, help_text="augment_shard, pause_shard, resume_shard, reweight_shards, …")
    direction = models.CharField(max_length=8, default="backward", help_text="forward or backward")
    rule = models.CharField(max_length=32, help_text="The rule that proposed it, or person")
    subject = models.CharField(
        max_length=160, help_text="What it is about, as shard:neuro_002; one standing proposal each"
    )
    sentence = models.TextField(help_text="What would be done and why, for a person to check")
    args = models.JSONField(default=dict)
    allowed = models.JSONField(default=dict, help_text="Ranges within which an approver may edit the arguments")
    evidence = models.JSONField(default=dict)
    expected = models.JSONField(
        default=dict, help_text="delta_loss, delta_cost_usd, delta_eta_s with low and high; confidence"
    )
    price_usd = models.DecimalField(max_digits=12, decimal_places=4, default=0)
    waiting_usd_per_hour = models.DecimalField(max_digits=12, decimal_places=4, default=0)
    situation = models.JSONField(default=dict, help_text="Frozen input of the rule")
    expires_at = models.DateTimeField()
    default_at = models.DateTimeField(null=True, help_text="When silence counts as default_answer")
    default_answer = models.CharField(max_length=8, blank=True, help_text="approve or reject")
    autonomy = models.CharField(max_length=24, default="ask", help_text="Level in force when it was proposed")
    autonomy_reason = models.TextField(blank=True)
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    executed_at = models.DateTimeField(null=True)
    applied_step = models.IntegerField(null=True, help_text="First step done under it")
    outcome = models.JSONField(
        default=dict, help_text="Measured effect after the window: see jobs/scheduler/outcomes.py"
    )
    outcome_at = models.DateTimeField(null=True)
    failure = models.TextField(blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["team", "number"], name="decision_number_once"),
            models.UniqueConstraint(
                fields=["job", "rule", "subject"],
                condition=models.Q(status="proposed"),
                name="decision_one_standing",
            ),
            models.CheckConstraint(
                condition=models.Q(status__in=[s for s, _ in choices("Decision")]), name="decision_status"
            ),
        ]
        indexes = [models.Index(fields=["team", "status", "-id"]), models.Index(fields=["job", "-id"])]
        ordering = ["-id"]

    def __str__(self) -> str:
        return f"D-{self.number}"


class Approval(PublicModel):
    """One answer by one person or by a rule. The first that completes the decision wins."""

    decision = models.ForeignKey(Decision, models.CASCADE, related_name="approvals")
    user = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    by_rule = models.CharField(max_length=120, blank=True)
    answer = models.CharField(max_length=8, choices=[("approve", "approve"), ("reject", "reject")])
    reason = models.TextField(blank=True)
    args = models.JSONField(null=True, help_text="Edited arguments, if any")
    void_at = models.DateTimeField(
        null=True, help_text="When a later approver changed the arguments; it counts no more"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["decision", "user"],
                condition=models.Q(void_at__isnull=True),
                name="approval_in_force_once_per_person",
            ),
            models.UniqueConstraint(
                fields=["decision"],
                condition=models.Q(void_at__isnull=True, user__isnull=True, by_rule__gt=""),
                name="approval_in_force_once_by_rule",
            ),
        ]
        ordering = ["id"]


class Rule(PublicModel):
    """What may be automated, and its limits. The narrowest match (job, kind) wins over the team's (kind)."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="rules")
    job = models.ForeignKey(Job, models.CASCADE, null=True, blank=True, related_name="rules")
    kind = models.CharField(max_length=32, help_text="Decision kind")
    autonomy = models.CharField(max_length=24, choices=[(a, a) for a in AUTONOMY], default="ask")
    limits = models.JSONField(
        default=dict, help_text="max_usd, max_usd_per_day, max_samples_per_day, max_per_hour, min_confidence"
    )
    default_answer = models.CharField(max_length=8, default="reject")
    default_after_s = models.PositiveIntegerField(default=10_800)
    min_role = models.CharField(max_length=16, default="approver")
    enabled = models.BooleanField(default=True)
    updated_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["team", "kind"], condition=models.Q(job__isnull=True), name="rule_once_per_team_kind"
            ),
            models.UniqueConstraint(fields=["job", "kind"], name="rule_once_per_job_kind"),
        ]
        ordering = ["kind", "id"]
