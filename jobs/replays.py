"""A what-if as a problem for `forecasting`: the same numbers under the same names as `manage.py replay` takes. Pure.

`forecasting.replay` compiles its kernels when it is loaded, so that it is imported where it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from forecasting.problem import Job
from forecasting.series import Series
from jobs.replay_numbers import LIMITS, MAX_TICKS

if TYPE_CHECKING:
    from forecasting.problem import IntArray
    from forecasting.replay import ReplayResult
    from forecasting.simulate import Market

# Numbers kept per policy for the charts of single windows.
MAX_TIMELINE = 6_000
# The optimum's plan is kept for the first windows only: each is solved again.
MAX_OPTIMA = 4


def problem_of(numbers: Mapping[str, Any], series: Series) -> tuple[Job, Market, IntArray]:
    """The job, the market cut into slots, and the starts of the windows. Raises ValueError that says what would work."""
    from forecasting.replay import draw_starts
    from forecasting.replay_command import make_job
    from forecasting.simulate import Market

    slots = slotted(numbers, series)
    scale = numbers["slot_s"] / 3600 if numbers["price_per"] == "hour" else 1.0
    price = _prices(numbers, slots) * scale
    counts = np.asarray(slots.availability, np.int64)
    market = Market(counts, price, float(numbers["slot_s"]), slots.start_s, slots.name)
    job = make_job(dict(numbers), scale)
    starts = draw_starts(len(market), job.hard_slots, numbers["history_fraction"], numbers["starts"], numbers["seed"])
    return job, market, starts


def slotted(numbers: Mapping[str, Any], series: Series) -> Series:
    """The series in slots. Raises ValueError without availability or if it is shorter than a slot."""
    if series.availability is None:
        raise ValueError(
            f"{series.name} has prices but no availability; take an availability trace and give this file as its prices"
        )
    if len(series) > MAX_TICKS:
        raise ValueError(f"{series.name} has {len(series)} ticks; at most {MAX_TICKS} are taken")
    slots = series.slots(float(numbers["slot_s"]))
    if len(slots) == 0:
        hours = len(series) * series.gap_s / 3600
        raise ValueError(f"{series.name} lasts {hours:.3g} h, which is shorter than one slot; take shorter slots")
    return slots


def _prices(numbers: Mapping[str, Any], slots: Series) -> Any:
    """Price per hour or slot (as `price_per` says); a trace's own prices are per hour."""
    if not numbers["own_prices"] or slots.price is None:
        return np.full(len(slots), float(numbers["spot"]))
    own, most = np.asarray(slots.price, float), LIMITS["spot"][1]
    if own.max() > most:  # sums of costs would leave what a number can hold
        raise ValueError(f"{slots.name} has a price of {own.max():g} USD an hour; at most {most:g} are taken")
    return own if numbers["price_per"] == "hour" else own * numbers["slot_s"] / 3600


def with_prices(series: Series, prices: Series | None) -> Series:
    """The series with the prices of another, tick by tick from its first one on. Raises ValueError if they end too soon."""
    if prices is None:
        return series
    if prices.price is None:
        raise ValueError(f"{prices.name} holds no prices")
    there = prices.slots(series.gap_s).price if prices.gap_s != series.gap_s else prices.price
    assert there is not None
    if len(there) < len(series):
        raise ValueError(f"{prices.name} has prices for {len(there)} of the {len(series)} ticks of {series.name}")
    return Series(series.name, series.start_s, series.gap_s, series.availability, there[: len(series)], series.notes)


def timelines_of(result: ReplayResult) -> dict[str, Any]:
    """What was there and what each policy held in the first windows, as many as fit."""
    horizon = result.job.hard_slots
    num = max(1, min(len(result.starts), MAX_TIMELINE // horizon))
    windows = [slice(int(start), int(start) + horizon) for start in result.starts[:num]]
    return {
        "starts": result.starts[:num].tolist(),
        "slot_s": result.job.slot_s,
        "start_s": result.market.start_s,
        "on_demand_price": result.job.on_demand_price,
        "availability": [result.market.availability[w].tolist() for w in windows],
        "price": [np.round(result.market.price[w], 6).tolist() for w in windows],
        "policies": {
            name: {"spot": r.n_spot[:num].tolist(), "on_demand": r.n_on_demand[:num].tolist()}
            for name, r in result.policies.items()
        },
        "clairvoyant": [_optimum(result, window) for window in windows[:MAX_OPTIMA]],
        "selector": selector_of(result),
    }


def _optimum(result: ReplayResult, window: slice) -> dict[str, Any]:
    """What the optimum held in one window; the replay keeps its money only."""
    from forecasting.clairvoyant import clairvoyant

    best = clairvoyant(result.job, result.market.availability[window], result.market.price[window])
    return {"spot": best.n_spot.tolist(), "on_demand": best.n_on_demand.tolist(), "finish_slot": best.finish_slot}


def selector_of(result: ReplayResult) -> dict[str, Any]:
    """What a selector over these policies would have learnt window by window: weights [K+1][M], regret and its bound."""
    from forecasting.selector import PolicySelector, scaled_utilities

    names = list(result.policies)
    selector = PolicySelector(names, horizon=len(result.starts))
    weights = [np.round(selector.weights, 4).tolist()]
    for column in np.array([r.utility for r in result.policies.values()]).T:
        selector.learn(scaled_utilities(column, result.job))
        weights.append(np.round(selector.weights, 4).tolist())
    return {
        "names": names,
        "weights": weights,
        "regret": round(selector.regret, 4),
        "bound": round(selector.bound, 4),
        "leader": selector.leader,
    }
