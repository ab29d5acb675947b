"""Reads about the weights of policies: whom the planner follows, what is due to be learnt, and what people see of it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import F, Q

from forecasting.selector import HedgeState, PolicySelector
from jobs.models import Offer, PolicyWeights
from jobs.scheduler.kinds import Kind

IN_USE = dt.timedelta(days=2)  # after the last job of its kind was planned
EVERY = dt.timedelta(minutes=5)  # between two looks for windows that have ended


def leaders(*, offers: Sequence[Offer]) -> dict[tuple[str, str], PolicyWeights]:
    """(public id of the offer, kind) -> its weights, without the state. One query."""
    rows = PolicyWeights.objects.filter(offer__in=offers).select_related("offer").defer("state")
    return {(str(row.offer.uuid), row.kind): row for row in rows}


def weights_due(*, now: dt.datetime) -> list[PolicyWeights]:
    """Weights of kinds in use that may have a window to replay, those first that know least."""
    due = Q(looked_at=None) | Q(looked_at__lt=now - EVERY)
    rows = PolicyWeights.objects.filter(due, wanted_at__gte=now - IN_USE).select_related("offer")
    return list(rows.order_by("num_windows", F("looked_at").asc(nulls_first=True), "pk")[:50])


@dataclass(frozen=True)
class Member:
    policy: str
    weight: float


@dataclass(frozen=True)
class Followed:
    """One kind of job on an offer, for people. `members`: policies with their weights, the heaviest first."""

    row: PolicyWeights
    kind: Kind
    members: list[Member]


def weights_of_offer(*, offer: Offer) -> list[Followed]:
    """What planned jobs follow on an offer, the kind planned last first."""
    rows = PolicyWeights.objects.filter(offer=offer).order_by("-wanted_at", "kind")
    return [Followed(row, Kind(**row.numbers), _members(row)) for row in rows]


def _members(row: PolicyWeights) -> list[Member]:
    if not row.state:
        return []
    state = HedgeState.from_json(row.state)
    weights = PolicySelector(state.names, state=state).weights.tolist()
    found = [Member(*pair) for pair in zip(state.names, weights, strict=True)]
    return sorted(found, key=lambda member: -member.weight)
