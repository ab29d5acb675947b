"""What a team holds now."""

from __future__ import annotations

from drf_spectacular.helpers import forced_singular_serializer
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.models import Instance
from jobs.selectors.fleet import fleet_of
from webapp.api.door import Door
from webapp.api.shapes import fleet as shape


class Fleet(Door):
    """Workers that train, and machines that cost money."""

    queryset = Instance.objects.all()
    serializer_class = shape.FleetShape
    pagination_class = None

    @extend_schema(parameters=[shape.TeamInput], responses=forced_singular_serializer(shape.FleetShape), filters=False)
    def list(self, request: Request) -> Response:
        """All workers of live attempts, all machines held, and those that ended last."""
        asked = shape.TeamInput(data=request.query_params)
        asked.is_valid(raise_exception=True)
        fleet = fleet_of(team=self.team(asked.validated_data.get("team")), now=self.now)
        return Response(shape.FleetShape(fleet).data)
