"""Decisions: read, approved (with edited arguments), rejected with a reason, in bulk."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.access import Viewer, fetch, need
from jobs.errors import DomainError
from jobs.models import Decision
from jobs.selectors.decisions import approval_role, decision_full
from jobs.services.approvals import decision_approve, decision_reject
from webapp.api.door import ReadDoor, idempotent
from webapp.api.filters import Words
from webapp.api.problems import DOMAIN
from webapp.api.shapes import decisions as shape


class DecisionFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")
    job = filters.UUIDFilter("job__uuid")
    status = Words("status", help_text="One or several, with commas", max_length=40)
    kind = filters.CharFilter(max_length=32)
    subject = filters.CharFilter(max_length=160)
    number = filters.NumberFilter(
        min_value=1, max_value=2**31 - 1, decimal_places=0, help_text="As people name it: 12 of D-12"
    )
    ordering = filters.OrderingFilter(
        fields={"created_at": "created_at", "expires_at": "expires_at", "waiting_usd_per_hour": "waiting_usd_per_hour"}
    )


class Decisions(ReadDoor):
    """Proposals, answered or not, newest first."""

    queryset = Decision.objects.select_related("team", "job", "requested_by").order_by("-id")
    serializer_class = shape.DecisionShape
    filterset_class = DecisionFilter

    def told(self, decision: Decision) -> dict[str, Any]:
        return shape.DecisionFull(decision_full().get(pk=decision.pk)).data

    def answerable(self) -> Decision:
        """The decision that the address names, if the viewer may answer it."""
        decision = self.row()
        need(self.viewer, decision.team_id, approval_role(decision=decision))
        return decision

    @extend_schema(responses=shape.DecisionFull)
    def retrieve(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return Response(self.told(self.row()))

    @extend_schema(request=shape.ApproveInput, responses=shape.DecisionFull)
    @action(detail=True, methods=["post"])
    @idempotent
    def approve(self, request: Request, id: str) -> Response:
        """Say yes; the first answer wins, later ones get 409. `args` may be edited inside `allowed`. Where two have to approve, the
        first yes leaves the decision `proposed`, and an edit by the second makes the first void."""
        data = self.body(shape.ApproveInput)
        decision = decision_approve(decision=self.answerable(), now=self.now, user=self.person, **data)
        return Response(self.told(decision))

    @extend_schema(request=shape.RejectInput, responses=shape.DecisionFull)
    @action(detail=True, methods=["post"])
    @idempotent
    def reject(self, request: Request, id: str) -> Response:
        """Say no, and why."""
        reason = self.body(shape.RejectInput)["reason"]
        decision = decision_reject(decision=self.answerable(), now=self.now, user=self.person, reason=reason)
        return Response(self.told(decision))

    @extend_schema(request=shape.BulkInput, responses=shape.BulkResult)
    @action(detail=False, methods=["post"])
    @idempotent
    def bulk(self, request: Request) -> Response:
        """The same answer to several decisions; each stands for itself, and the result says what became of each."""
        data = self.body(shape.BulkInput)
        results = [answer_one(self.viewer, pk, data["answer"], data["reason"], self.now) for pk in data["decisions"]]
        return Response({"num_done": sum(r["status"] == 200 for r in results), "results": results})


def answer_one(viewer: Viewer, public_id: Any, answer: str, reason: str, now: dt.datetime) -> dict[str, Any]:
    """Answer one decision of a bulk, as if it had been sent alone."""
    line = {"id": str(public_id), "status": 200, "code": "", "detail": ""}
    try:
        decision = fetch(viewer, Decision.objects.select_related("team", "job"), public_id)
        need(viewer, decision.team_id, approval_role(decision=decision))
        if answer == "approve":
            decision_approve(decision=decision, now=now, user=viewer.user, reason=reason)  # type: ignore[arg-type]
        else:
            decision_reject(decision=decision, now=now, user=viewer.user, reason=reason)  # type: ignore[arg-type]
    except DomainError as error:
        status = next(DOMAIN[c][0] for c in type(error).__mro__ if c in DOMAIN)
        return {**line, "status": status, "code": error.code, "detail": error.message}
    return line
