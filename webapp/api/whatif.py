"""What-ifs: policies replayed over a trace, as a long piece of work that is asked for, followed and fetched."""

from __future__ import annotations

from typing import Any

from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiTypes, extend_schema
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from forecasting.series import Series
from jobs.models import Job, Offer, WhatIf
from jobs.selectors.whatif import LARGE
from jobs.services.whatif import whatif_cancel, whatif_create
from jobs.services.whatif_traces import trace_generated, trace_joined, trace_of_offer, trace_of_text
from webapp.api.door import ReadDoor, idempotent
from webapp.api.filters import Words
from webapp.api.shapes import whatif as shape
from webapp.api.shapes.fields import Nothing


class WhatIfFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")
    job = filters.UUIDFilter("job__uuid")
    status = Words("status", help_text="One or several, with commas", max_length=40)


class WhatIfs(ReadDoor):
    """What-ifs of the viewer's teams, newest first."""

    queryset = WhatIf.objects.select_related("team", "created_by", "job", "offer").defer(*LARGE).order_by("-id")
    serializer_class = shape.WhatIfShape
    filterset_class = WhatIfFilter

    @extend_schema(request=shape.WhatIfNew, responses={202: shape.WhatIfShape})
    @idempotent
    def create(self, request: Request) -> Response:
        """Ask for a replay; a worker computes it, one at a time. The trace is kept as it is now."""
        data = self.body(shape.WhatIfNew)
        job = self.other(Job.objects.select_related("team"), data["job"], role="operator") if "job" in data else None
        team = self.team(data.get("team") or (job.team.uuid if job else None), role="operator")
        offer = self.other(Offer.objects.all(), data["offer"]) if "offer" in data else None
        numbers = dict(data.get("numbers") or {})
        row = whatif_create(
            team=team,
            user=self.person,
            series=self.series(data, offer, numbers),
            source="offer" if offer else "upload" if "trace" in data else "generated",
            numbers=numbers,
            policies=data["policies"],
            name=data["name"],
            job=job,
            offer=offer,
            now=self.now,
        )
        return Response(shape.WhatIfShape(row).data, status=202)

    def series(self, data: dict[str, Any], offer: Offer | None, numbers: dict[str, Any]) -> Series:
        """The trace that the body names. Raises `Invalid`."""
        if offer is not None:
            return trace_of_offer(offer=offer, now=self.now)
        if made := data.get("generated"):
            return trace_generated(**made, capacity=numbers.get("n_max", 16))
        name, key, columns = data["trace_name"], data["trace_key"], data["trace_columns"]
        series = trace_of_text(text=data["trace"], name=name, key=key, columns=columns)
        prices = None
        if "prices" in data:
            prices = trace_of_text(text=data["prices"], name="prices", key=data["prices_key"], field="prices")
        return trace_joined(series=series, prices=prices)

    @extend_schema(responses=OpenApiTypes.OBJECT)
    @action(detail=True)
    def result(self, request: Request, id: str) -> Response:
        """What came out, as `manage.py replay --json` writes it; empty before."""
        return Response(self.row().result)

    @extend_schema(request=Nothing, responses=shape.WhatIfShape)
    @action(detail=True, methods=["post"])
    @idempotent
    def cancel(self, request: Request, id: str) -> Response:
        """Stop it; a worker that computes it notices at its next part."""
        row = whatif_cancel(row=self.row("operator"), now=self.now, actor=self.actor)
        return Response(shape.WhatIfShape(row).data)
