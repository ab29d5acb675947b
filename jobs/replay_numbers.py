"""The numbers of a what-if: names, defaults and limits, and how long a replay with them takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

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


def seconds_of(numbers: Mapping[str, Any], policies: Iterable[str]) -> float:
    """About how long the replay takes on one core; for the person who asks, and to refuse what would take for ever."""
    deadline = numbers["deadline_slots"]
    if deadline is None:
        deadline = numbers["work_hours"] * 3600 / numbers["work_fraction"] / numbers["slot_s"]
    slots = numbers["gamma"] * deadline * numbers["starts"] * max(1.0, numbers["n_max"] / 16)
    return float(slots * (OPTIMUM_S + sum(DECISION_S.get(policy.partition("(")[0], 0.0001) for policy in policies)))


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
