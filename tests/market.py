"""A small market and a small what-if for tests: real rows made through the services."""

from __future__ import annotations

import datetime as dt
from typing import Any

from jobs.models import FeedState, WhatIf
from jobs.services.demo_market import demo_market_seed
from jobs.services.whatif import whatif_create
from jobs.services.whatif_traces import trace_generated
from tests.factories import Cast

NUMBERS = {
    "n_max": 4, "deadline_slots": 12, "slot_s": 3600.0, "mu_grow": 1.0, "mu_shrink": 1.0, "starts": 3,
}  # fmt: skip


def make_market(*, now: dt.datetime) -> FeedState:
    """Six spot offers and three on-demand ones with four weeks behind them."""
    return demo_market_seed(now=now, seed=1)


def make_whatif(cast: Cast, *, now: dt.datetime, policies: tuple[str, ...] = ("SpotFirst",), **numbers: Any) -> WhatIf:
    """A what-if that waits, over twelve days of a generated zone."""
    series = trace_generated(zone="us-west-2a", days=12, seed=3, capacity=4)
    return whatif_create(
        team=cast.team, user=cast.operator, series=series, source="generated", numbers={**NUMBERS, **numbers},
        policies=list(policies), now=now,
    )  # fmt: skip
