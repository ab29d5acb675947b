"""What-if: policies replayed over a market trace with a job's numbers, kept so that a team can look at it again."""

from __future__ import annotations

from django.conf import settings
from django.db import models

from jobs.models.base import StatefulModel
from jobs.models.jobs import Job
from jobs.models.market import Offer
from jobs.models.teams import Team
from jobs.states import choices

SOURCES = [("offer", "An offer of the market"), ("upload", "A file"), ("generated", "A generated market")]


class WhatIf(StatefulModel):
    """One replay: the trace as it was when it was asked for, the numbers of the job, the policies, and what came out."""

    team = models.ForeignKey(Team, models.CASCADE, related_name="whatifs")
    created_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    job = models.ForeignKey(Job, models.SET_NULL, null=True, related_name="whatifs", help_text="Whose numbers it took")
    name = models.CharField(max_length=120)
    source = models.CharField(max_length=16, choices=SOURCES)
    offer = models.ForeignKey(Offer, models.SET_NULL, null=True, related_name="+")
    trace_name = models.CharField(max_length=120)
    trace = models.BinaryField(help_text="The series as compressed JSON, so that it can be computed again")
    notes = models.JSONField(default=list, help_text="What was assumed when the trace was read")
    numbers = models.JSONField(help_text="The job and the windows, under the names that manage.py replay uses")
    policies = models.JSONField(help_text="Names of policies, in the order of the table")
    num_done = models.PositiveIntegerField(default=0, help_text="Parts done, for the progress bar")
    num_parts = models.PositiveIntegerField(default=0)
    claim = models.CharField(max_length=64, blank=True, help_text="Token of the worker that holds it")
    lease_until = models.DateTimeField(null=True)
    num_tries = models.PositiveIntegerField(default=0)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField(null=True)
    result = models.JSONField(default=dict, help_text="The document of manage.py replay --json")
    timelines = models.JSONField(default=dict, help_text="What each policy held, slot by slot, in a few windows")
    error = models.TextField(blank=True)

    class Meta:
        verbose_name = "what-if"
        constraints = [
            models.CheckConstraint(
                condition=models.Q(status__in=[s for s, _ in choices("WhatIf")]), name="whatif_status"
            ),
        ]
        indexes = [models.Index(fields=["team", "-id"]), models.Index(fields=["status", "lease_until"])]
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.name
