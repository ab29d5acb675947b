"""Datasets, shards, their revisions and samples."""

from __future__ import annotations

from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.db.models import Count
from django.http import FileResponse, StreamingHttpResponse
from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiParameter, OpenApiTypes, extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.errors import NotFound
from jobs.models import Dataset, ShardRevision
from jobs.selectors.shards import revision_samples, shards_counted
from jobs.services.datasets import dataset_create, shards_from_config
from jobs.services.shards import revision_create, revision_file, shard_create
from webapp.api.door import KEY_PARAMETER, ReadDoor, idempotent
from webapp.api.paging import whole
from webapp.api.sample_stream import file_chunks
from webapp.api.shapes import datasets as shape
from webapp.api.strict import StrictJSONParser, YAMLParser

MAX_SAMPLES = 200


class DatasetFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")
    name = filters.CharFilter(lookup_expr="icontains", max_length=200)
    ordering = filters.OrderingFilter(fields={"name": "name", "created_at": "created_at"})


class Datasets(ReadDoor):
    """Named sets of shards."""

    queryset = (
        Dataset.objects.select_related("team", "created_by").annotate(num_shards=Count("shards")).order_by("name", "id")
    )
    serializer_class = shape.DatasetShape
    filterset_class = DatasetFilter
    parser_classes = [StrictJSONParser, YAMLParser]

    @extend_schema(request=shape.DatasetNew, responses={201: shape.DatasetShape})
    @idempotent
    def create(self, request: Request) -> Response:
        """An empty dataset."""
        data = self.body(shape.DatasetNew)
        team = self.team(data.pop("team", None), role="operator")
        dataset = dataset_create(team=team, user=self.person, now=self.now, **data)
        return Response(shape.DatasetShape(self.queryset.get(pk=dataset.pk)).data, status=201)

    @extend_schema(
        request={"application/json": shape.ShardConfig, "application/yaml": shape.ShardConfig},
        responses={200: shape.ShardConfigResult},
    )
    @action(detail=True, methods=["post"], filterset_class=None)
    @idempotent
    def config(self, request: Request, id: str) -> Response:
        """Make the shards of a `shard_config.yaml`. Their samples are uploaded afterwards: your paths mean nothing here."""
        dataset = self.row("operator")
        made = shards_from_config(dataset=dataset, config=request.data, now=self.now, user=self.person)
        names = {
            "created": [s.key for s in made.created],
            "known": [s.key for s in made.known],
            "waiting": made.waiting,
        }
        return Response(shape.ShardConfigResult(names).data)


class ShardFilter(filters.FilterSet):
    team = filters.UUIDFilter("dataset__team__uuid")
    dataset = filters.UUIDFilter("dataset__uuid")
    key = filters.CharFilter(max_length=120)
    category = filters.CharFilter(max_length=80)
    ordering = filters.OrderingFilter(
        fields={"key": "key", "created_at": "created_at", "hardness_score": "hardness_score"}
    )


class Shards(ReadDoor):
    """Parts of datasets whose loss is followed by itself."""

    queryset = shards_counted().order_by("category", "key", "id")
    serializer_class = shape.ShardShape
    filterset_class = ShardFilter

    @extend_schema(request=shape.ShardNew, responses={201: shape.ShardShape})
    @idempotent
    def create(self, request: Request) -> Response:
        """An empty shard; send its samples as a revision or an upload."""
        data = self.body(shape.ShardNew)
        dataset = self.other(Dataset.objects.select_related("team"), data.pop("dataset"), role="operator")
        shard = shard_create(dataset=dataset, now=self.now, actor=self.actor, **data)
        return Response(shape.ShardShape(self.queryset.get(pk=shard.pk)).data, status=201)

    @extend_schema(responses=shape.RevisionShape(many=True), methods=["GET"], filters=False)
    @extend_schema(
        request=shape.RevisionNew, responses={201: shape.RevisionShape}, methods=["POST"], parameters=[KEY_PARAMETER]
    )
    @action(detail=True, methods=["get", "post"])
    def revisions(self, request: Request, id: str) -> Response:
        """What the shard has held (GET), or new content for it (POST); the same content as before makes no new revision."""
        if request.method == "GET":
            rows = self.row().revisions.select_related("shard", "parent", "augmentation").order_by("-number")
            return self.listed(rows, shape.RevisionShape)
        return self.revise(request)

    @idempotent
    def revise(self, request: Request) -> Response:
        data = self.body(shape.RevisionNew)
        revision = revision_create(
            shard=self.row("operator"), samples=data["samples"], origin="rest", now=self.now, actor=self.actor,
            provenance=data.get("provenance"),
        )  # fmt: skip
        return Response(shape.RevisionShape(revision).data, status=201)


class RevisionFilter(filters.FilterSet):
    shard = filters.UUIDFilter("shard__uuid")
    dataset = filters.UUIDFilter("shard__dataset__uuid")
    origin = filters.CharFilter(max_length=24)


PAGE = [
    OpenApiParameter(name, {"type": "integer", "minimum": 0, "maximum": top}, description=words)
    for name, top, words in (("offset", 2**31, "First sample"), ("limit", MAX_SAMPLES, "How many, 20 if not said"))
]


class Revisions(ReadDoor):
    """What a shard holds from one moment on."""

    queryset = ShardRevision.objects.select_related("shard", "shard__dataset", "parent", "augmentation").order_by("-id")
    serializer_class = shape.RevisionShape
    filterset_class = RevisionFilter

    @extend_schema(parameters=PAGE, responses=shape.SamplesPage)
    @action(detail=True)
    def samples(self, request: Request, id: str) -> Response:
        """Some of the samples, with their provenance."""
        revision = self.row()
        offset, limit = min(whole(request, "offset", 0), 2**31), min(whole(request, "limit", 20), MAX_SAMPLES)
        found = revision_samples(revision=revision, offset=offset, limit=limit)
        return Response({"num_samples": revision.num_samples, "offset": offset, "samples": found})

    @extend_schema(responses={(200, "application/x-ndjson"): OpenApiTypes.BINARY})
    @action(detail=True)
    def content(self, request: Request, id: str) -> Any:
        """The whole file: JSONL, one sample a line."""
        revision = self.row()
        try:
            file = revision_file(revision).open("rb")
        except OSError:
            raise NotFound(f"The samples of {revision} are not on this server any more.") from None
        headers = {
            "ETag": f'"{revision.sha256}"',
            "Content-Type": "application/x-ndjson",
            "Content-Length": str(revision.num_bytes),
            "Content-Disposition": f'attachment; filename="{revision.shard.key}-r{revision.number}.jsonl"',
        }
        if isinstance(request._request, ASGIRequest):
            return StreamingHttpResponse(file_chunks(file), headers=headers)
        return FileResponse(file, headers=headers)
