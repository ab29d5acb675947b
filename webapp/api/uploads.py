"""Files that become revisions of shards."""

from __future__ import annotations

from typing import Any

from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiTypes, extend_schema
from rest_framework.parsers import BaseParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.errors import Invalid
from jobs.models import Dataset, Upload
from jobs.services.shardfiles import Source
from jobs.services.uploads import shard_upload
from webapp.api.door import ReadDoor
from webapp.api.shapes import datasets as shape


class StreamParser(BaseParser):
    """Leaves the body where it is: the service reads it piece by piece."""

    media_type = "*/*"

    def parse(self, stream: Any, media_type: str | None = None, parser_context: Any = None) -> Any:
        return {}


class UploadFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")
    dataset = filters.UUIDFilter("dataset__uuid")
    accepted = filters.BooleanFilter()


class Uploads(ReadDoor):
    """Uploads and the verdict on each."""

    queryset = Upload.objects.select_related("team", "user", "dataset").order_by("-id")
    serializer_class = shape.UploadShape
    filterset_class = UploadFilter
    parser_classes = [MultiPartParser, StreamParser]

    @extend_schema(
        parameters=[shape.UploadQuery],
        request={"multipart/form-data": shape.UploadForm, "application/octet-stream": OpenApiTypes.BINARY},
        responses={201: shape.UploadDone},
    )
    def create(self, request: Request) -> Response:
        """Send a file, as a form or as the body itself. It is judged line by line; nothing is kept of one with bad lines (400, with
        the first 20 named) unless `accept_partial`. The same content again makes no new revision, so a repeat is harmless."""
        query = shape.UploadQuery(data=request.query_params.dict())
        query.is_valid(raise_exception=True)
        data: dict[str, Any] = dict(query.validated_data)
        dataset = self.other(Dataset.objects.select_related("team"), data["dataset"], role="operator")
        source, name = body_of(request, data["file_name"])
        upload, revision = shard_upload(
            dataset=dataset, key=data["shard"], source=source, file_name=name, file_format=data["format"], now=self.now,
            user=self.person, accept_partial=data["accept_partial"], category=data["category"],
        )  # fmt: skip
        verdict = shape.UploadShape(upload).data
        if revision is None:
            raise Invalid(f"{upload.num_bad} lines cannot be accepted; nothing was stored.", upload=verdict)
        return Response({**verdict, "revision": shape.RevisionShape(revision).data}, status=201)


def body_of(request: Request, file_name: str) -> tuple[Source, str]:
    """The uploaded file of a form, or the body itself; and its name."""
    if (request.content_type or "").startswith("multipart/"):
        file = request.FILES.get("file")
        if file is None:
            raise Invalid("The form has no file.", fields={"file": ["Send the file in the field 'file'."]})
        return file, file_name or file.name or ""
    return request._request, file_name
