"""Small jobs and markets that the market tests share."""

import numpy as np

from forecasting.problem import Job
from forecasting.simulate import Market

NAMES = ("OnDemandOnly", "SpotFirst", "UniformProgress", "AHANP", "AHAP", "StochasticProgram")


def elastic_job(**changes: object) -> Job:
    """4 GPUs, a day of half hours, spot at a third of on-demand."""
    numbers: dict[str, object] = {
        "work": 40.0, "deadline_slots": 20, "value": 60.0, "on_demand_price": 1.0, "n_min": 1, "n_max": 4,
        "mu_grow": 0.85, "mu_shrink": 0.95, "slot_s": 1800.0,
    }  # fmt: skip
    return Job(**{**numbers, **changes})  # type: ignore[arg-type]


def single_job(**changes: object) -> Job:
    """One GPU with a changeover of two slots, in the "can't be late" form."""
    numbers: dict[str, object] = {
        "work": 20.0, "deadline_slots": 30, "value": 90.0, "on_demand_price": 3.0, "changeover_s": 720.0, "slot_s": 390.0,
    }  # fmt: skip
    return Job(**{**numbers, **changes})  # type: ignore[arg-type]


def random_market(
    seed: int, top: int, num_slots: int = 120, slot_s: float = 1800.0, price: float | None = None
) -> Market:
    """Spells of none and all with some levels between, and a price that wanders or stays."""
    rng = np.random.default_rng(seed)
    availability, up = np.zeros(num_slots, dtype=np.int64), bool(rng.integers(0, 2))
    for t in range(num_slots):
        up = up if rng.random() > 0.15 else not up
        availability[t] = int(rng.integers(max(1, top - 1), top + 1)) if up else 0
    prices = 0.35 * np.exp(np.cumsum(rng.normal(0, 0.03, num_slots))) if price is None else np.full(num_slots, price)
    return Market(availability, prices, slot_s, start_s=1_700_000_000.0, name=f"random {seed}")
