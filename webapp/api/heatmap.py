"""Charts of a job: loss per shard, step time per worker, series, decisions on the step axis."""

from __future__ import annotations

import gzip
import uuid
from typing import Any

from django.http import HttpResponse
from django.urls import path
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.views import APIView

from jobs.access import fetch
from jobs.models import Job
from jobs.selectors.heatmap import Heatmap, heatmap
from jobs.selectors.marks import marks_of
from jobs.selectors.windows import MAX_BINS, attempt_named, window_checked
from jobs.selectors.workers import step_times
from webapp.api.auth import viewer_of
from webapp.api.hardness_forms import hardness_cells, hardness_form, hardness_shards
from webapp.api.heatmap_forms import encode, heatmap_form, heatmap_rows, mark_form, series_form, step_times_form

MAX_STEP = 2**31 - 1
GZIP_FROM = 8 * 1024  # bytes
WINDOW = [
    OpenApiParameter("from", int, description="First step."),
    OpenApiParameter("to", int, description="Step after the last; default: the newest."),
    OpenApiParameter("bins", int, description="At most so many bins; the server may give fewer."),
    OpenApiParameter("width", int, description="Steps per bin, a power of two; wins over `bins`."),
    OpenApiParameter("attempt", str, description="UUID or number of one attempt; default: the surviving branch."),
]
SHARDS = [
    OpenApiParameter("shards", str, description="Shard ids, separated by commas; default: all."),
    OpenApiParameter("search", str, description="Only shards whose id or category holds this text."),
    OpenApiParameter("order", str, enum=["category", "worst", "hardness", "index"]),
    OpenApiParameter(
        "offset", int, description="Rows to leave out, where a job has more shards than one answer holds."
    ),
]
VALUE = OpenApiParameter("value", str, enum=["hardness"], description="hardness: its cells, too, as matrix `hardness`.")


def job_of(request: Request, job: uuid.UUID) -> Job:
    return fetch(viewer_of(request), Job.objects.select_related("team"), job)


def window_query(request: Request, job: Job, default_bins: int = 120) -> dict[str, Any]:
    """from, to, bins and attempt of the query, checked."""
    query = request.query_params
    return {
        "since": window_checked("from", query.get("from"), 0, MAX_STEP) or 0,
        "until": window_checked("to", query.get("to"), 0, MAX_STEP),
        "bins": window_checked("bins", query.get("bins"), 1, MAX_BINS) or default_bins,
        "width": window_checked("width", query.get("width"), 1, MAX_STEP),
        "attempt": attempt_named(job, query.get("attempt", "")),
    }


def heatmap_asked(request: Request, job: Job, default_bins: int = 120) -> Heatmap:
    query = request.query_params
    return heatmap(
        job,
        keys=[key for key in query.get("shards", "").split(",") if key],
        search=query.get("search", "")[:120].strip(),
        order=query.get("order") or "category",
        offset=window_checked("offset", query.get("offset"), 0, 1_000_000) or 0,
        **window_query(request, job, default_bins),
    )


def compact(request: Request, document: Any) -> HttpResponse:
    """JSON, packed where the client takes it."""
    body = encode(document)
    headers = {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if len(body) > GZIP_FROM and "gzip" in request.headers.get("Accept-Encoding", ""):
        body, headers["Content-Encoding"] = gzip.compress(body, compresslevel=1), "gzip"
    return HttpResponse(body, content_type="application/json", headers=headers)


class HeatmapView(APIView):
    @extend_schema(
        summary="Loss per shard over steps",
        tags=["charts"],
        parameters=[*WINDOW, *SHARDS, VALUE],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request, job: uuid.UUID) -> HttpResponse:
        heat = heatmap_asked(request, job_of(request, job))
        cells = hardness_cells(heat) if request.query_params.get("value") == "hardness" else {}
        return compact(request, heatmap_form(heat) | cells)


class HardnessView(APIView):
    @extend_schema(
        summary="Hardness of shards over steps, 0 easy to 1 hard",
        tags=["charts"],
        parameters=[*WINDOW[:2], *SHARDS[:1]],
        responses=OpenApiTypes.OBJECT,
    )
    def get(self, request: Request, job: uuid.UUID) -> HttpResponse:
        """What was measured at each evaluation of the rules, at most 400 of them; null before a shard was part of the job."""
        row, query = job_of(request, job), request.query_params
        since = window_checked("from", query.get("from"), 0, MAX_STEP) or 0
        until = window_checked("to", query.get("to"), 0, MAX_STEP)
        keys = [key for key in query.get("shards", "").split(",") if key]
        return compact(request, hardness_form(row, hardness_shards(row, keys), since, until))


class HeatmapCsvView(APIView):
    @extend_schema(
        summary="Loss per shard over steps, as CSV",
        tags=["charts"],
        parameters=WINDOW + SHARDS,
        responses={(200, "text/csv"): OpenApiTypes.STR},
    )
    def get(self, request: Request, job: uuid.UUID) -> HttpResponse:
        row = job_of(request, job)
        text = "".join(heatmap_rows(heatmap_asked(request, row)))
        name = f'attachment; filename="loss-{row.uuid}.csv"'
        return HttpResponse(text, content_type="text/csv; charset=utf-8", headers={"Content-Disposition": name})


class WorkersView(APIView):
    @extend_schema(
        summary="Step time per worker over steps", tags=["charts"], parameters=WINDOW, responses=OpenApiTypes.OBJECT
    )
    def get(self, request: Request, job: uuid.UUID) -> HttpResponse:
        row = job_of(request, job)
        return compact(request, step_times_form(step_times(row, **window_query(request, row))))


class SeriesView(APIView):
    @extend_schema(
        summary="Loss lines of shards", tags=["charts"], parameters=WINDOW + SHARDS, responses=OpenApiTypes.OBJECT
    )
    def get(self, request: Request, job: uuid.UUID) -> HttpResponse:
        row = job_of(request, job)
        return compact(request, series_form(heatmap_asked(request, row, 400)))


class MarksView(APIView):
    @extend_schema(summary="Decisions on the step axis", tags=["charts"], responses=OpenApiTypes.OBJECT)
    def get(self, request: Request, job: uuid.UUID) -> HttpResponse:
        row = job_of(request, job)
        return compact(request, {"current_step": row.current_step, "marks": [mark_form(m) for m in marks_of(row)]})


urlpatterns = [
    path("jobs/<uuid:job>/heatmap/", HeatmapView.as_view(), name="job_heatmap"),
    path("jobs/<uuid:job>/heatmap.csv", HeatmapCsvView.as_view(), name="job_heatmap_csv"),
    path("jobs/<uuid:job>/hardness/", HardnessView.as_view(), name="job_hardness"),
    path("jobs/<uuid:job>/workers/", WorkersView.as_view(), name="job_workers"),
    path("jobs/<uuid:job>/series/", SeriesView.as_view(), name="job_series"),
    path("jobs/<uuid:job>/marks/", MarksView.as_view(), name="job_marks"),
]
