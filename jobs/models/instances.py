"""Machines that cost money until their end is confirmed."""

from __future__ import annotations

from django.db import models

from jobs.models.base import PublicModel, StatefulModel
from jobs.models.jobs import Attempt, Job
from jobs.models.market import Offer
from jobs.models.teams import Team


class Instance(StatefulModel):
    """A machine of a provider. Cost runs from `requested` until `terminated` is confirmed."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="instances")
    job = models.ForeignKey(Job, models.SET_NULL, null=True, related_name="instances")
    attempt = models.ForeignKey(Attempt, models.SET_NULL, null=True, related_name="instances")
    claim = models.CharField(max_length=64, unique=True, help_text="Idempotency token of the create call")
    backend = models.CharField(max_length=32)
    provider_id = models.CharField(max_length=200, blank=True)
    kind = models.CharField(max_length=16, default="on_demand", help_text="spot or on_demand")
    num_gpus = models.PositiveIntegerField(default=0)
    offer = models.ForeignKey(Offer, models.SET_NULL, null=True, related_name="instances")
    price_usd_per_hour = models.DecimalField(max_digits=12, decimal_places=6, default=0, help_text="The price in force")
    prices = models.JSONField(
        default=list, help_text="Prices since the start as [unix seconds, USD per hour]; empty: one"
    )
    asked = models.JSONField(
        default=dict, help_text="What the provider answered while there was none: num, again_at, answer"
    )
    end_asked = models.JSONField(
        default=dict, help_text="Of asking for its end: num, again_at, answer (empty where it was not refused)"
    )
    end_late_at = models.DateTimeField(null=True, help_text="When it was told that its end is not confirmed for long")
    missing_at = models.DateTimeField(
        null=True, help_text="Since when the provider tells nothing of it, without a word in between"
    )
    notice_at = models.DateTimeField(null=True, help_text="When the provider said that it will take the machine")
    ends_by = models.DateTimeField(null=True, help_text="When the provider takes it")
    started_at = models.DateTimeField(null=True)
    running_at = models.DateTimeField(
        null=True, help_text="When it was first seen to run: a bought one can work from then on"
    )
    ended_at = models.DateTimeField(null=True)
    detail = models.TextField(blank=True)

    class Meta:
        ordering = ["-id"]


class Placement(models.Model):
    """Which machine a rank of an attempt runs on, where machines are held apart from attempts."""

    instance = models.ForeignKey(Instance, models.CASCADE, related_name="placements")
    attempt = models.ForeignKey(Attempt, models.CASCADE, related_name="placements")
    rank = models.PositiveIntegerField()

    class Meta:
        ordering = ["attempt_id", "rank"]
        constraints = [models.UniqueConstraint(fields=["attempt", "rank"], name="placement_rank_once")]


class Orphan(PublicModel):
    """What carried our tag, was nobody's, and was therefore ended. In no ledger: what it cost is not known."""

    team = models.ForeignKey(Team, models.CASCADE, null=True, related_name="orphans", help_text="Empty: not known")
    job = models.ForeignKey(Job, models.SET_NULL, null=True, related_name="+")
    backend = models.CharField(max_length=32)
    claim = models.CharField(max_length=200)
    detail = models.TextField(help_text="What it is, and why it is ended")
    num_asked = models.PositiveIntegerField(default=0, help_text="How often its end was asked for")
    seen_at = models.DateTimeField(help_text="When it was last seen")
    ended_at = models.DateTimeField(null=True, help_text="When it was first seen no more")

    class Meta:
        ordering = ["-id"]
        constraints = [models.UniqueConstraint(fields=["backend", "claim"], name="orphan_once")]
