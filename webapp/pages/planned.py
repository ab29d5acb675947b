"""The chart of a planned job, as the browser draws it."""

from __future__ import annotations

import datetime as dt
from typing import Any

from webapp.pages.market_chart import local


def on_the_clock(value: Any) -> Any:
    """Moments within a document on the team's clock, as Plotly reads them."""
    if isinstance(value, dt.datetime):
        return local(value)
    if isinstance(value, dict):
        return {name: on_the_clock(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [on_the_clock(inner) for inner in value]
    return value
