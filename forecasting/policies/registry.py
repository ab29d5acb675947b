"""Policies by name: what replay, the selector and the pages offer."""

import re
from collections.abc import Callable, Iterable

from forecasting.guard import Guarded
from forecasting.policies.ahanp import AHANP
from forecasting.policies.ahap import AHAP
from forecasting.policies.base import Policy
from forecasting.policies.fixed import OnDemandOnly, SpotFirst, UniformProgress
from forecasting.policies.forecasts import Forecaster, Remembered, markov_forecast
from forecasting.policies.stochastic import StochasticProgram

PROGRAMME = "StochasticProgram"
# What a planner's selector chooses among: small enough to be replayed on every market, wide enough to differ.
PLANNING_POOL = (
    PROGRAMME,
    "SpotFirst",
    "UniformProgress",
    "OnDemandOnly",
    *(f"AHANP({threshold})" for threshold in ("0", "0.05", "0.2")),
    *(f"AHAP({numbers})" for numbers in ("3,1,0.8", "6,2,0.6", "6,2,0.8", "6,2,1")),
    "AHAP(6,2,0.8)~0.3",
)

POLICIES: dict[str, Callable[[Forecaster], Policy]] = {
    "OnDemandOnly": lambda _: OnDemandOnly(),
    "SpotFirst": lambda _: SpotFirst(),
    "UniformProgress": lambda _: UniformProgress(),
    "AHANP": lambda _: AHANP(0.05),
    "AHAP": lambda forecaster: AHAP(12, 3, 0.8, forecaster, error_switch=0.3),
    "StochasticProgram": lambda _: StochasticProgram(),
}


def make_policy(name: str, forecaster: Forecaster = markov_forecast) -> Guarded:
    """A guarded policy: a name in POLICIES, or with parameters as in `AHAP(12,3,0.8)`, `AHAP(12,3,0.8)~0.3`, `AHANP(0.05)`."""
    found = re.fullmatch(r"(\w+)(?:\(([\d.,\s]*)\)(?:~([\d.]+))?)?", name.strip())
    if found and found[2] is None and found[1] in POLICIES:
        return Guarded(POLICIES[found[1]](forecaster))
    numbers = [float(x) for x in (found[2] or "").split(",") if x.strip()] if found else []
    if found and found[1] == "AHAP" and len(numbers) == 3:
        switch = float(found[3]) if found[3] else None
        return Guarded(AHAP(int(numbers[0]), int(numbers[1]), numbers[2], forecaster, error_switch=switch))
    if found and found[1] == "AHANP" and len(numbers) == 1 and not found[3]:
        return Guarded(AHANP(numbers[0]))
    raise ValueError(
        f"unknown policy {name!r}; known are {', '.join(POLICIES)}, AHAP(window,commitment,threshold), AHANP(threshold)"
    )


def make_policies(names: Iterable[str], forecaster: Forecaster = markov_forecast) -> list[Guarded]:
    """Policies that look at the same markets: what several of them ask of the forecaster is forecast once."""
    forecaster = Remembered(forecaster)
    return [make_policy(name, forecaster) for name in names]


def make_pool(forecaster: Forecaster = markov_forecast) -> list[Guarded]:
    """The selector's pool: 105 AHAP (window x commitment x threshold), 6 with a switch, 7 AHANP and the others: 122."""
    forecaster = Remembered(forecaster)
    pool: list[Policy] = [
        AHAP(window, commitment, threshold, forecaster)
        for window in (1, 2, 3, 4, 6, 9, 12)
        for commitment in (1, 2, 3, 4, 6)
        for threshold in (0.4, 0.6, 0.8, 1.0)
        if commitment <= window
    ]
    pool += [
        AHAP(window, commitment, 0.8, forecaster, error_switch=limit)
        for window, commitment in ((3, 1), (6, 2), (12, 3))
        for limit in (0.1, 0.3)
    ]
    pool += [AHANP(threshold) for threshold in (0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)]
    pool += [OnDemandOnly(), SpotFirst(), UniformProgress(), StochasticProgram()]
    return [Guarded(policy) for policy in pool]
