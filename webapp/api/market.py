"""The market: offers with their quotes, forecasts and scores, feeds, refused rows. All teams share it."""

from __future__ import annotations

import datetime as dt

from django_filters import rest_framework as filters
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.decorators import action
from rest_framework.mixins import ListModelMixin
from rest_framework.request import Request
from rest_framework.response import Response

from jobs.models import FeedState, MarketForecast, Offer, QuarantinedQuote
from jobs.selectors.forecasts import scores_of_offer
from jobs.selectors.market_page import offers_listed, quotes_of
from jobs.selectors.policy_weights import weights_of_offer
from jobs.services.market import offer_level_confirm
from webapp.api.door import Door, ReadDoor, idempotent
from webapp.api.paging import whole
from webapp.api.shapes import market as shape

MAX_HOURS = 14 * 24


class OfferFilter(filters.FilterSet):
    provider = filters.CharFilter(max_length=32)
    region = filters.CharFilter(max_length=64)
    zone = filters.CharFilter(max_length=64)
    instance_type = filters.CharFilter(max_length=100)
    is_spot = filters.BooleanFilter()

    class Meta:
        model = Offer
        fields: list[str] = []


class Offers(ReadDoor):
    """What can be bought, with its latest price and availability."""

    queryset = offers_listed()
    serializer_class = shape.OfferShape
    filterset_class = OfferFilter

    @extend_schema(
        responses=shape.QuoteShape(many=True),
        filters=False,
        parameters=[OpenApiParameter("hours", {"type": "integer", "minimum": 1, "maximum": MAX_HOURS})],
    )
    @action(detail=True, pagination_class=None)
    def quotes(self, request: Request, id: str) -> Response:
        """The quotes of the last hours (24 unless said), and before them those in force at their begin."""
        hours = min(whole(request, "hours", 24), MAX_HOURS)
        rows = quotes_of(offer=self.row(), start=self.now - dt.timedelta(hours=hours), end=self.now)
        return Response(shape.QuoteShape(rows, many=True).data)

    @extend_schema(responses=shape.ForecastShape(many=True), filters=False)
    @action(detail=True, pagination_class=None)
    def forecasts(self, request: Request, id: str) -> Response:
        """The latest forecast of its price and its availability, as the clock has made it."""
        rows = MarketForecast.objects.filter(offer=self.row())
        return Response(shape.ForecastShape(rows, many=True).data)

    @extend_schema(responses=shape.ScoreShape(many=True), filters=False)
    @action(detail=True, pagination_class=None)
    def scores(self, request: Request, id: str) -> Response:
        """How well each forecaster did on its past."""
        return Response(shape.ScoreShape(scores_of_offer(offer=self.row()), many=True).data)

    @extend_schema(responses=shape.PolicyWeightsShape(many=True), filters=False)
    @action(detail=True, pagination_class=None)
    def policies(self, request: Request, id: str) -> Response:
        """Which policy planned jobs of each kind follow on it, by replays of its past."""
        return Response(shape.PolicyWeightsShape(weights_of_offer(offer=self.row()), many=True).data)

    @extend_schema(request=shape.ConfirmInput, responses=shape.OfferShape)
    @action(detail=True, methods=["post"])
    @idempotent
    def confirm(self, request: Request, id: str) -> Response:
        """Say that its price has really moved: the next quotes are taken at their level, once."""
        team = self.team(self.body(shape.ConfirmInput).get("team"), role="approver")
        offer = self.row("approver")
        offer_level_confirm(offer=offer, now=self.now, team=team, actor=self.actor)
        return Response(shape.OfferShape(self.row()).data)


class Feeds(ListModelMixin, Door):
    """Where quotes come from: last success, last error, next try."""

    queryset = FeedState.objects.order_by("name")
    serializer_class = shape.FeedShape


class RefusedFilter(filters.FilterSet):
    feed = filters.CharFilter(max_length=64)

    class Meta:
        model = QuarantinedQuote
        fields: list[str] = []


class Quarantine(ListModelMixin, Door):
    """Rows of feeds that are not planned with, and why; the latest first."""

    queryset = QuarantinedQuote.objects.order_by("-last_seen_at", "-id")
    serializer_class = shape.RefusedShape
    filterset_class = RefusedFilter
