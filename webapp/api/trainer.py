"""What a trainer says: start, reports, samples, snapshots, finish. `docs/trainer_protocol.md` is the authority.

Under the ASGI server `report_gate.py` takes the reports before they come here; both do the same through the same functions.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.db import InterfaceError, OperationalError
from django.http import FileResponse, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import path
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.views import APIView

from jobs.errors import DomainError
from jobs.models import ShardRevision
from jobs.selectors.proofs import attempt_proof
from jobs.services.attempts import attempt_finish, attempt_must_write, attempt_start
from jobs.services.directives import directives_deliver
from jobs.services.evaluations import evaluation_note
from jobs.services.report_form import PROTOCOL, report_parse
from jobs.services.reports import report_add
from jobs.services.shards import revision_file
from jobs.services.snapshots import snapshot_note
from jobs.states import ATTEMPT_LIVE
from webapp.api.sample_stream import file_chunks
from webapp.api.trainer_door import (
    REPORT_INTERVAL_S,
    Answer,
    Refusal,
    Speaker,
    answer_json,
    answer_refusal,
    answer_report,
    attempt_of,
    body_unpack,
    busy,
    directive_form,
    refusal_of,
    speaker_find,
)
from webapp.api.trainer_forms import (
    MAX_MESSAGE,
    EvaluationForm,
    FinishForm,
    SnapshotForm,
    StartForm,
    finish_fields,
    form_parse,
    parts_of,
    plain,
    start_fields,
)

View = Callable[[Any, Request, Speaker, bytes], Answer]
BEARER: Any = [{"bearer": []}]  # the name that webapp/api/auth.py gives in the schema
PROBLEMS = {
    code: OpenApiResponse(OpenApiTypes.OBJECT, description=what)
    for code, what in {
        400: "bad_report",
        401: "bad_token: missing, unknown, revoked or expired",
        403: "bad_token: of something else",
        409: "attempt_superseded",
        413: "too_large",
        503: "busy",
    }.items()
}


def described(summary: str) -> Any:
    """OpenAPI of a trainer endpoint; the protocol page says what the bodies hold."""
    return extend_schema(
        summary=summary,
        tags=["trainer"],
        auth=BEARER,
        request=OpenApiTypes.OBJECT,
        responses={200: OpenApiTypes.OBJECT, **PROBLEMS},
    )


def spoken(view: View) -> Callable[..., HttpResponseBase]:
    """Find the speaker, unpack the body, turn refusals into problems."""

    @functools.wraps(view)
    def inner(self: TrainerView, request: Request, attempt: uuid.UUID) -> HttpResponseBase:
        try:
            speaker = speaker_find(request.headers.get("Authorization", ""), attempt, timezone.now())
            body = body_unpack(request._request.body, request.headers.get("Content-Encoding", "").lower())
            answer = view(self, request, speaker, body)
        except Refusal as refusal:
            answer = answer_refusal(refusal)
        except DomainError as error:
            answer = answer_refusal(refusal_of(error))
        except (OperationalError, InterfaceError):
            answer = answer_refusal(busy("The database is busy; nothing was stored. Keep the batch and try again."))
        status, content, headers = answer
        return HttpResponse(content, status=status, headers=headers)

    return inner


class TrainerView(APIView):
    """The speaker is found by `spoken`, not by the authentication of people."""

    authentication_classes = []
    permission_classes = []


class StartView(TrainerView):
    @described("The process group stands")
    @spoken
    def post(self, request: Request, speaker: Speaker, body: bytes) -> Answer:
        word, now = form_parse(StartForm, body), timezone.now()
        attempt = attempt_start(attempt=attempt_of(speaker), now=now, hello=start_fields(word))
        if attempt.status == "failed" and attempt_proof(attempt=attempt) == "different":
            raise Refusal(409, "attempt_superseded", f"{attempt.detail} Stop: another attempt takes over.")
        directives = [directive_form(d) for d in directives_deliver(attempt=attempt, now=now)]
        return answer_json(
            {"protocol": PROTOCOL, "server_time": now, "directives": directives, "report_interval_s": REPORT_INTERVAL_S}
        )


class ReportsView(TrainerView):
    @described("Telemetry of one worker")
    @spoken
    def post(self, request: Request, speaker: Speaker, body: bytes) -> Answer:
        batch, now = report_parse(body), timezone.now()
        stored = report_add(attempt=attempt_of(speaker), batch=batch, now=now, token_id=speaker.token_id)
        return answer_report(stored, now)


class SnapshotsView(TrainerView):
    @described("State of a snapshot")
    @spoken
    def post(self, request: Request, speaker: Speaker, body: bytes) -> Answer:
        word, attempt = form_parse(SnapshotForm, body), attempt_of(speaker)
        attempt_must_write(attempt=attempt)
        snapshot_note(
            attempt=attempt, name=plain(word.snapshot, 120), kind=word.kind, status=word.status, step=word.step,
            micro_step=word.micro_step, world_size=word.world_size, uri=plain(word.uri, 500), num_bytes=word.num_bytes,
            digest=plain(word.digest, 80), detail=plain(word.detail, MAX_MESSAGE), parts=parts_of(word.parts),
            save_s=word.save_s, now=timezone.now(),
        )  # fmt: skip
        return answer_json({})


class EvaluationsView(TrainerView):
    @described("Loss on held-out samples")
    @spoken
    def post(self, request: Request, speaker: Speaker, body: bytes) -> Answer:
        word, attempt = form_parse(EvaluationForm, body), attempt_of(speaker)
        attempt_must_write(attempt=attempt)
        shards = {plain(name, 120): loss for name, loss in word.shards.items()}
        evaluation_note(
            attempt=attempt, step=word.step, loss=word.loss, tokens=word.tokens, shards=shards, now=timezone.now()
        )
        return answer_json({})


class FinishView(TrainerView):
    @described("The last word of an attempt")
    @spoken
    def post(self, request: Request, speaker: Speaker, body: bytes) -> Answer:
        word, attempt = form_parse(FinishForm, body), attempt_of(speaker)
        if attempt.status in ATTEMPT_LIVE:
            attempt_must_write(attempt=attempt)  # an attempt that was left behind must not end the job of its successor
        attempt_finish(attempt=attempt, now=timezone.now(), outcome=word.outcome, word=finish_fields(word))
        return answer_json({})


class SamplesView(TrainerView):
    @extend_schema(
        summary="Samples of a shard revision",
        tags=["trainer"],
        auth=BEARER,
        responses={(200, "application/x-ndjson"): OpenApiTypes.BINARY, 304: None, **PROBLEMS},
    )
    def get(self, request: Request, attempt: uuid.UUID, revision: uuid.UUID) -> HttpResponseBase:
        try:
            speaker = speaker_find(request.headers.get("Authorization", ""), attempt, timezone.now())
            return self.stream(request, speaker, revision)
        except Refusal as refusal:
            status, content, headers = answer_refusal(refusal)
            return HttpResponse(content, status=status, headers=headers)

    def stream(self, request: Request, speaker: Speaker, revision: uuid.UUID) -> HttpResponseBase:
        """The file as it is; its ETag is its SHA-256."""
        row = ShardRevision.objects.filter(uuid=revision, shard__job_shards__job__attempts=speaker.attempt_id).first()
        if row is None:
            raise Refusal(404, "not_found", "No such revision of a shard of this job.")
        headers = {"ETag": f'"{row.sha256}"', "Content-Type": "application/x-ndjson"}
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return HttpResponse(status=304, headers={"ETag": headers["ETag"]})
        try:
            file = revision_file(row).open("rb")
        except OSError as error:
            raise Refusal(404, "not_found", f"The samples of this revision cannot be read: {error.strerror}.") from None
        if isinstance(request._request, ASGIRequest):
            headers["Content-Length"] = str(row.num_bytes)
            return StreamingHttpResponse(file_chunks(file), headers=headers)
        return FileResponse(file, headers=headers)


urlpatterns = [
    path("attempts/<uuid:attempt>/start/", StartView.as_view(), name="trainer_start"),
    path("attempts/<uuid:attempt>/reports/", ReportsView.as_view(), name="trainer_reports"),
    path("attempts/<uuid:attempt>/snapshots/", SnapshotsView.as_view(), name="trainer_snapshots"),
    path("attempts/<uuid:attempt>/evaluations/", EvaluationsView.as_view(), name="trainer_evaluations"),
    path("attempts/<uuid:attempt>/finish/", FinishView.as_view(), name="trainer_finish"),
    path("attempts/<uuid:attempt>/revisions/<uuid:revision>/samples/", SamplesView.as_view(), name="trainer_samples"),
]
