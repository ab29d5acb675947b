"""Rules: what may happen without a person, and inside which limits."""

from __future__ import annotations

from django_filters import rest_framework as filters
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.models import Job, Rule
from jobs.services.rules import rule_set
from webapp.api.door import ReadDoor, idempotent
from webapp.api.shapes import decisions as shape


class RuleFilter(filters.FilterSet):
    team = filters.UUIDFilter("team__uuid")
    job = filters.UUIDFilter("job__uuid")
    kind = filters.CharFilter(max_length=32)


class Rules(ReadDoor):
    """Rules of teams and of single jobs; the narrowest is in force, without one a person is asked."""

    queryset = Rule.objects.select_related("team", "job", "updated_by").order_by("kind", "id")
    serializer_class = shape.RuleShape
    filterset_class = RuleFilter

    @extend_schema(request=shape.RuleNew, responses={200: shape.RuleShape})
    @idempotent
    def create(self, request: Request) -> Response:
        """Set the rule for a kind of decision, of the team or of one job; there is one each, so this also changes it."""
        data = self.body(shape.RuleNew)
        job_id = data.pop("job", None)
        job = self.other(Job.objects.select_related("team"), job_id, role="approver") if job_id else None
        team = self.team(data.pop("team", None) or (job.team.uuid if job else None), role="approver")
        rule = rule_set(team=team, job=job, now=self.now, actor=self.actor, **data)
        return Response(shape.RuleShape(rule).data)
