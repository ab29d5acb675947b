"""Costs of a team over a period."""

from __future__ import annotations

from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.models import Instance
from jobs.selectors.ledger import ledger_of
from webapp.api.door import Door
from webapp.api.shapes import costs as shape


class Costs(Door):
    """The ledger: by day, by job, spot and on-demand apart, waste apart."""

    queryset = Instance.objects.all()
    serializer_class = shape.LedgerShape
    pagination_class = None

    @extend_schema(
        parameters=[shape.PeriodInput], responses=forced_singular_serializer(shape.LedgerShape), filters=False
    )
    def list(self, request: Request) -> Response:
        """Sums of the period; machines that run on count up to now."""
        asked = shape.PeriodInput(data=request.query_params)
        asked.is_valid(raise_exception=True)
        period = asked.validated_data
        ledger = ledger_of(team=self.team(period.get("team")), start=period["start"], end=period["end"])
        return Response(shape.LedgerShape(ledger).data)
