"""Jobs: written as a job file, planned, submitted, held, ended."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiTypes, extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.access import by_uuid
from jobs.errors import NotFound
from jobs.models import Decision, Evaluation, Job, JobShard
from jobs.previews import job_preview
from jobs.selectors.jobs import job_lines
from jobs.services.attempt_logs import log_read
from jobs.services.balance import job_rebalance
from jobs.services.boosts import job_boost
from jobs.services.job_changes import job_change
from jobs.services.jobs import job_cancel, job_pause, job_resume, job_submit
from jobs.services.resizes import job_drain, job_resize
from jobs.services.shard_stats import may_report, shard_stats_add
from webapp.api.auth import MayIngest
from webapp.api.door import ReadDoor, idempotent
from webapp.api.filters import Words
from webapp.api.jobfile import job_planned, job_written
from webapp.api.shapes import jobfile, plans
from webapp.api.shapes import jobs as shape
from webapp.api.shapes.decisions import CommandShape
from webapp.api.shapes.fields import Nothing
from webapp.api.strict import StrictJSONParser, YAMLParser


class JobFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")
    dataset = filters.UUIDFilter("dataset__uuid")
    status = Words("status", help_text="One or several, with commas", max_length=40)
    text = filters.CharFilter(method="with_text", help_text="In the name or the model", max_length=200)
    ordering = filters.OrderingFilter(
        fields={"created_at": "created_at", "name": "name", "deadline": "deadline", "priority": "priority"}
    )

    def with_text(self, rows: QuerySet[Job], name: str, value: str) -> QuerySet[Job]:
        return rows.filter(Q(name__icontains=value) | Q(model__icontains=value))


def _counted(model: Any, **where: Any) -> Any:
    """Number of rows of `model` that belong to a job, as a subquery: joins would multiply each other."""
    rows = model.objects.filter(job=OuterRef("pk"), **where).order_by().values("job")
    return Coalesce(Subquery(rows.annotate(n=Count("pk")).values("n")), 0)


class Jobs(ReadDoor):
    """Jobs of the viewer's teams, newest first."""

    queryset = (
        Job.objects.select_related("team", "dataset", "created_by")
        .annotate(num_open_decisions=_counted(Decision, status="proposed"), num_shards=_counted(JobShard))
        .order_by("-id")
    )
    serializer_class = shape.JobShape
    filterset_class = JobFilter
    parser_classes = [StrictJSONParser, YAMLParser]

    def told(self, job: Job) -> dict[str, Any]:
        """A job with its numbers, read again after a change."""
        job = self.queryset.get(pk=job.pk)
        return shape.JobFull(job, context={"lines": self.lines([job])}).data

    def lines(self, jobs: list[Job]) -> dict[int, Any]:
        return {line.job.pk: line for line in job_lines(jobs=jobs, now=self.now)}

    def list(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        rows = self.filter_queryset(self.get_queryset()).defer("report", "config", "training")
        page = self.paginate_queryset(rows) or []
        return self.get_paginated_response(shape.JobShape(page, many=True, context={"lines": self.lines(page)}).data)

    @extend_schema(responses=shape.JobFull)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return Response(self.told(self.row()))

    @extend_schema(
        request={"application/json": jobfile.JobNew, "application/yaml": jobfile.JobNew},
        responses={201: shape.JobFull, 200: plans.PlanShape},
    )
    @idempotent
    def create(self, request: Request) -> Response:
        """A job from a job file. `dry_run`: checked and planned (200), not created. `submit`: queued at once."""
        data = self.body(jobfile.JobNew)
        if data["dry_run"]:
            plan = job_planned(viewer=self.viewer, data=data, sent=request.data, now=self.now)
            return Response(plans.PlanShape(plan).data)
        job = job_written(viewer=self.viewer, data=data, sent=request.data, now=self.now)
        return Response(self.told(job), status=201)

    @extend_schema(request=jobfile.JobChange, responses=shape.JobFull)
    def partial_update(self, request: Request, id: str) -> Response:
        """Another deadline or budget, or other limits on machines; a job that runs is planned anew at once.

        Refused with numbers: a deadline that the steps left cannot meet, a budget that is spent, machines that nobody offers.
        """
        changes = self.body(jobfile.JobChange)
        job = job_change(job=self.row("operator"), changes=changes, now=self.now, actor=self.actor)
        return Response(self.told(job))

    @extend_schema(request=Nothing, responses=plans.PlanShape, methods=["GET"])
    @action(detail=True)
    def plan(self, request: Request, id: str) -> Response:
        """What the job would take: time, cost, chance to make the deadline, with reasons."""
        return Response(plans.PlanShape(job_preview(job=self.row(), now=self.now)).data)

    @extend_schema(request=Nothing, responses=shape.JobFull)
    @action(detail=True, methods=["post"])
    @idempotent
    def submit(self, request: Request, id: str) -> Response:
        """Queue a draft: it starts to cost money."""
        job = job_submit(job=self.row("operator"), now=self.now, actor=self.actor)
        return Response(self.told(job))

    @extend_schema(request=Nothing, responses=shape.JobFull)
    @action(detail=True, methods=["post"])
    @idempotent
    def pause(self, request: Request, id: str) -> Response:
        """Hold the trainer at its next control point. Nothing is started for the job until it is let go on."""
        return Response(self.told(job_pause(job=self.row("operator"), now=self.now, actor=self.actor)))

    @extend_schema(request=Nothing, responses=shape.JobFull)
    @action(detail=True, methods=["post"])
    @idempotent
    def resume(self, request: Request, id: str) -> Response:
        """Let a held trainer go on, or start the next attempt where none is left; 409 at a budget that would stop it again at once.

        Of a job that is held since no agent spoke on its machines: buy machines again.
        """
        return Response(self.told(job_resume(job=self.row("operator"), now=self.now, actor=self.actor)))

    @extend_schema(request=shape.ResizeInput, responses={202: CommandShape})
    @action(detail=True, methods=["post"])
    @idempotent
    def resize(self, request: Request, id: str) -> Response:
        """Go on with another number of workers, from the very micro-step. The answer is the order; `/commands/{id}/` shows its end.

        409 while it cannot be: the job does not run, a resize is under way, its trainer does not know how.
        """
        num_workers = self.body(shape.ResizeInput)["num_workers"]
        order = job_resize(job=self.row("operator"), num_workers=num_workers, now=self.now, actor=self.actor)
        return Response(CommandShape(order).data, status=202)

    @extend_schema(request=shape.RebalanceInput, responses={202: CommandShape})
    @action(detail=True, methods=["post"])
    @idempotent
    def rebalance(self, request: Request, id: str) -> Response:
        """Share the micro-batches of a step out in another proportion, from the next step on. Samples and global batch stay.

        409 while it cannot be: the job does not run, has one worker, a resize is under way, its trainer does not know how.
        """
        shares = self.body(shape.RebalanceInput)["shares"]
        order = job_rebalance(job=self.row("operator"), shares=shares, now=self.now, actor=self.actor)
        return Response(CommandShape(order).data, status=202)

    @extend_schema(request=shape.DrainInput, responses={202: CommandShape})
    @action(detail=True, methods=["post"])
    @idempotent
    def drain(self, request: Request, id: str) -> Response:
        """Go on with one worker less, without the machine of that rank. As `resize` otherwise."""
        rank = self.body(shape.DrainInput)["rank"]
        order = job_drain(job=self.row("operator"), rank=rank, now=self.now, actor=self.actor)
        return Response(CommandShape(order).data, status=202)

    @extend_schema(request=shape.BoostInput, responses=shape.JobFull)
    @action(detail=True, methods=["post"])
    @idempotent
    def boost(self, request: Request, id: str) -> Response:
        """Put points on top of the job's priority, for all to see why. Points of 0 take a boost or a demotion back."""
        return self._boosted(1)

    @extend_schema(request=shape.BoostInput, responses=shape.JobFull)
    @action(detail=True, methods=["post"])
    @idempotent
    def demote(self, request: Request, id: str) -> Response:
        """Take points from the job's priority. Points of 0 take a boost or a demotion back."""
        return self._boosted(-1)

    def _boosted(self, sign: int) -> Response:
        data = self.body(shape.BoostInput)
        job = job_boost(
            job=self.row("operator"),
            points=sign * data["points"],
            reason=data["reason"],
            now=self.now,
            actor=self.actor,
        )
        return Response(self.told(job))

    @extend_schema(request=shape.ReasonInput, responses=shape.JobFull)
    @action(detail=True, methods=["post"])
    @idempotent
    def cancel(self, request: Request, id: str) -> Response:
        """End the job. It keeps what it has done."""
        reason = self.body(shape.ReasonInput)["reason"]
        job = job_cancel(job=self.row("operator"), now=self.now, actor=self.actor, reason=reason)
        return Response(self.told(job))

    @extend_schema(responses=shape.JobShardShape(many=True), filters=False)
    @action(detail=True)
    def shards(self, request: Request, id: str) -> Response:
        """The shards as this job uses them: weight, pause, revision in force."""
        rows = JobShard.objects.filter(job=self.row()).select_related("shard", "revision").order_by("index")
        return self.listed(rows, shape.JobShardShape)

    @extend_schema(responses=shape.EvaluationShape(many=True), filters=False)
    @action(detail=True)
    def evaluations(self, request: Request, id: str) -> Response:
        """Losses on held-out samples, newest first."""
        rows = Evaluation.objects.filter(attempt__job=self.row()).select_related("attempt").order_by("-id")
        return self.listed(rows, shape.EvaluationShape)

    @extend_schema(request=shape.ShardStats, responses=shape.ShardStatsStored)
    @action(detail=True, methods=["post"], permission_classes=[MayIngest])
    def shard_stats(self, request: Request, id: str) -> Response:
        """One shard's loss from a script of your own: the simple way to report, with a token of scope `ingest`."""
        job = by_uuid(Job.objects.select_related("team"), id)
        if not may_report(token=request.auth, job=job):  # type: ignore[arg-type]
            raise NotFound("No such job.")
        data = self.body(shape.ShardStats)
        flags = {name: next(iter(flag)) for name, flag in data.pop("nonfinite", {}).items() if flag}
        stored = shard_stats_add(job=job, now=self.now, nonfinite=flags, **data)
        return Response({"accepted": stored.num_points, "duplicate": stored.duplicate})

    @extend_schema(parameters=[shape.LogInput], responses=shape.LogShape)
    @action(detail=True)
    def log(self, request: Request, id: str) -> Response:
        """Log lines of the newest attempt: the last ones, or with `attempt` and `offset` of an answer what came since."""
        asked = shape.LogInput(data=request.query_params)
        asked.is_valid(raise_exception=True)
        attempt = self.row().attempts.order_by("-fence").first()
        if attempt is None:
            return Response({"attempt": None, "lines": [], "offset": 0})
        same = asked.validated_data.get("attempt") == attempt.uuid
        offset = asked.validated_data.get("offset") if same else None
        part = log_read(attempt=attempt, offset=offset, num_lines=asked.validated_data["num_lines"])
        return Response({"attempt": attempt.uuid, "lines": part.lines, "offset": part.offset})

    @extend_schema(responses=OpenApiTypes.OBJECT)
    @action(detail=True)
    def report(self, request: Request, id: str) -> Response:
        """What happened, written once when the job has ended; empty before."""
        return Response(self.row().report)
