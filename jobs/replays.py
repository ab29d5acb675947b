"""A what-if as a problem for `forecasting`: the same numbers under the same names as `manage.py replay` takes. Pure.

`forecasting.replay` compiles its kernels when it is loaded, so that it is imported where it is used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from forecasting.problem import Job
from forecasting.series import Series

if TYPE_CHECKING:
    from forecasting.problem import IntArray
    from forecasting.replay import ReplayResult
    from forecasting.simulate import Market

# The options of `manage.py replay` and what they are if nobody says; `own_prices` takes the trace's prices where it has any.
DEFAULTS: dict[str, Any] = {
    "n_min": 1,
    "n_max": 8,
    "gang": False,
    "sizes": None,
    "work_fraction": 0.5,
    "work_hours": None,
    "deadline_slots": 48,
    "slot_s": 1800.0,
    "gamma": 1.5,
    "value_factor": 1.5,
    "mu_grow": 0.85,
    "mu_shrink": 0.95,
    "changeover_s": None,
    "on_demand": 3.0,
    "spot": 1.0,
    "price_per": "hour",
    "own_prices": True,
    "budget": None,
    "starts": 12,
    "seed": 1,
    "history_fraction": 0.33,
}
MAX_N, MAX_STARTS, MAX_POLICIES, MAX_TICKS = 64, 200, 12, 600_000
# A worker is held for at most about so long; the estimate is from one core: seconds per decision at 16 sizes, by policy,
# and per slot of a window for the optimum.
MAX_SECONDS = 1_200
DECISION_S = {"AHAP": 0.06, "StochasticProgram": 0.012, "AHANP": 0.001}
OPTIMUM_S = 0.01
# Numbers kept per policy for the charts of single windows.
MAX_TIMELINE = 6_000


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
    own = np.asarray(slots.price, float)
    return own if numbers["price_per"] == "hour" else own * numbers["slot_s"] / 3600


def seconds_of(numbers: Mapping[str, Any], policies: Iterable[str]) -> float:
    """About how long the replay takes on one core; for the person who asks, and to refuse what would take for ever."""
    deadline = numbers["deadline_slots"]
    if deadline is None:
        deadline = numbers["work_hours"] * 3600 / numbers["work_fraction"] / numbers["slot_s"]
    slots = numbers["gamma"] * deadline * numbers["starts"] * max(1.0, numbers["n_max"] / 16)
    return float(slots * (OPTIMUM_S + sum(DECISION_S.get(policy.partition("(")[0], 0.0001) for policy in policies)))


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
    }


def policies_known() -> list[str]:
    """Names that a what-if may choose, besides AHAP(window,commitment,threshold) and AHANP(threshold)."""
    from forecasting.policies.registry import POLICIES

    return list(POLICIES)


# name -> (lowest, highest, whole numbers only)
LIMITS: dict[str, tuple[float, float, bool]] = {
    "n_min": (1, MAX_N, True),
    "n_max": (1, MAX_N, True),
    "work_fraction": (0.001, 10, False),
    "work_hours": (0.001, 100_000, False),
    "deadline_slots": (1, 2_016, True),
    "slot_s": (10, 86_400, False),
    "gamma": (1, 10, False),
    "value_factor": (0, 1_000, False),
    "mu_grow": (0, 1, False),
    "mu_shrink": (0, 1, False),
    "changeover_s": (0, 86_400, False),
    "on_demand": (0.000001, 1_000_000, False),
    "spot": (0, 1_000_000, False),
    "budget": (0, 1_000_000_000, False),
    "starts": (1, MAX_STARTS, True),
    "seed": (0, 2**31 - 1, True),
    "history_fraction": (0, 0.95, False),
}
OPTIONAL = frozenset({"sizes", "work_hours", "deadline_slots", "changeover_s", "budget"})


def number_faults(numbers: Mapping[str, Any]) -> dict[str, list[str]]:
    """Name -> what is wrong with it; empty if all numbers are within their limits and fit each other."""
    faults = {name: fault for name in LIMITS if (fault := _fault(name, numbers[name]))}
    if numbers["deadline_slots"] is None and numbers["work_hours"] is None:
        faults["deadline_slots"] = "Give a deadline in slots, or hours of work from which it follows."
    if not faults and numbers["n_min"] > numbers["n_max"]:
        faults["n_min"] = f"At most the largest size, {numbers['n_max']}."
    if numbers["sizes"] and not all(part.strip().isdigit() for part in numbers["sizes"].split(",")):
        faults["sizes"] = "Whole numbers with commas between, for example 2,4,8."
    if numbers["price_per"] not in ("hour", "slot"):
        faults["price_per"] = "hour or slot."
    return {name: [fault] for name, fault in faults.items()}


def _fault(name: str, value: Any) -> str:
    low, high, is_whole = LIMITS[name]
    if value is None:
        return "" if name in OPTIONAL else "Fill this in."
    if not math.isfinite(value) or not low <= value <= high:
        return f"From {low:g} to {high:g}."
    return "A whole number." if is_whole and value != int(value) else ""
