"""What is only read: events, attempts, snapshots, commands, directives, augmentations."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.models import Attempt, Augmentation, Command, Directive, Event, Snapshot
from jobs.services.augmentations import augmentation_cancel, augmentation_resume
from webapp.api.door import Door, ReadDoor, idempotent
from webapp.api.filters import Words
from webapp.api.paging import NewestFirst
from webapp.api.shapes import attempts, decisions, jobs
from webapp.api.shapes.fields import Nothing


class EventFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")
    job = filters.UUIDFilter("job__uuid")
    kind = filters.CharFilter(
        method="of_kind", max_length=64, help_text="decision.approved, or decision for all of them"
    )
    subject = filters.UUIDFilter("subject_uuid")

    def of_kind(self, rows: QuerySet[Event], name: str, value: str) -> QuerySet[Event]:
        return rows.filter(kind=value) if "." in value else rows.filter(kind__startswith=f"{value}.")


class Events(ListModelMixin, Door):
    """The history, newest first; `after` asks for what has come since an id."""

    queryset = Event.objects.select_related("team", "job").order_by("-id")
    serializer_class = decisions.EventShape
    filterset_class = EventFilter
    pagination_class = NewestFirst


class AttemptFilter(filters.FilterSet):
    team = filters.UUIDFilter("job__team__uuid")
    job = filters.UUIDFilter("job__uuid")
    status = Words("status", help_text="One or several, with commas", max_length=40)


class Attempts(ReadDoor):
    """Runs of jobs, newest first."""

    queryset = Attempt.objects.select_related("job", "job__team", "resumed_from").order_by("-id")
    serializer_class = attempts.AttemptShape
    filterset_class = AttemptFilter

    @extend_schema(responses=attempts.AttemptFull)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return Response(attempts.AttemptFull(self.row()).data)


class SnapshotFilter(AttemptFilter):
    attempt = filters.UUIDFilter("attempt__uuid")
    kind = filters.CharFilter(max_length=16, help_text="gradient or weights")


class Snapshots(ReadDoor):
    """Gradient snapshots and exported weights, newest first."""

    queryset = Snapshot.objects.select_related("job", "job__team", "attempt").order_by("-id")
    serializer_class = attempts.SnapshotShape
    filterset_class = SnapshotFilter


class CommandFilter(AttemptFilter):
    decision = filters.UUIDFilter("decision__uuid")
    kind = filters.CharFilter(max_length=32)


class Commands(ReadDoor):
    """Orders for workers: what happens, or has happened, after a submit or an approval."""

    queryset = Command.objects.select_related("job", "job__team", "decision").order_by("-id")
    serializer_class = decisions.CommandShape
    filterset_class = CommandFilter


class DirectiveFilter(filters.FilterSet):
    team = filters.UUIDFilter("attempt__job__team__uuid")
    job = filters.UUIDFilter("attempt__job__uuid")
    attempt = filters.UUIDFilter("attempt__uuid")
    decision = filters.UUIDFilter("decision__uuid")
    status = Words("status", help_text="One or several, with commas", max_length=40)


class Directives(ReadDoor):
    """Orders for running trainers."""

    queryset = Directive.objects.select_related("attempt", "attempt__job", "attempt__job__team", "decision").order_by(
        "-id"
    )
    serializer_class = decisions.DirectiveShape
    filterset_class = DirectiveFilter


class AugmentationFilter(AttemptFilter):
    decision = filters.UUIDFilter("decision__uuid")
    shard = filters.UUIDFilter("shard__uuid")


class Augmentations(ReadDoor):
    """Data jobs: new samples made from a shard's samples."""

    queryset = Augmentation.objects.select_related("job", "job__team", "shard", "decision").order_by("-id")
    serializer_class = decisions.AugmentationShape
    filterset_class = AugmentationFilter

    @extend_schema(request=jobs.ReasonInput, responses=decisions.AugmentationShape)
    @action(detail=True, methods=["post"])
    @idempotent
    def cancel(self, request: Request, id: str) -> Response:
        """Stop it. What it has made is kept for `resume`; the decision behind it fails."""
        reason = self.body(jobs.ReasonInput)["reason"]
        row = augmentation_cancel(augmentation=self.row("operator"), now=self.now, actor=self.actor, reason=reason)
        return Response(decisions.AugmentationShape(row).data)

    @extend_schema(request=Nothing, responses={201: decisions.AugmentationShape})
    @action(detail=True, methods=["post"])
    @idempotent
    def resume(self, request: Request, id: str) -> Response:
        """A new data job that takes over what a cancelled or failed one has made."""
        row = augmentation_resume(augmentation=self.row("operator"), now=self.now, actor=self.actor)
        return Response(decisions.AugmentationShape(row).data, status=201)
